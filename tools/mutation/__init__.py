# SPDX-License-Identifier: Apache-2.0
"""Mutations of the kernels: how sources are read, what is drawn, and how a mutant is built and tested."""
