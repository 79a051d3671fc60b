# SPDX-License-Identifier: Apache-2.0
"""Tandem inside other libraries."""
