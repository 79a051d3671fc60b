#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Enforces the rules of the structure on a source tree.

structure.py ROOT prints what breaks them, and exits 1 if anything does. The layers are those of LAYERS, the numbers those
of CONTRIBUTING.md. C++ is read by heuristics that know this repository's format, not by a parser.
"""
import ast
import fnmatch
import os
import pathlib
import re
import sys

from cpp import blank, functions

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 6
# Whose signatures are another library's, parameter for parameter.
FOREIGN_SIGNATURES = ("python/tandem/flash_attn_interface.py",)

KERNELS = {"core", "hw", "tile"}
# What each folder of src may include; core is a leaf, and every arrow points down.
LAYERS = {
    "core": {"core"},
    "hw/sm90": {"core", "hw", "hw/sm90"},
    "hw/sim": {"core", "hw", "hw/sim"},
    "hw": {"core", "hw"},
    "tile": KERNELS,
    "cpu": KERNELS | {"cpu"},
    "launch": {"core", "hw", "launch"},
    "forward": KERNELS | {"launch", "forward"},
    "decode": KERNELS | {"launch", "decode"},
    "backward": KERNELS | {"launch", "backward"},
    "merge": KERNELS | {"launch", "merge"},
    "quantize": KERNELS | {"launch", "quantize"},
    "api": KERNELS | {"launch", "cpu", "forward", "decode", "backward", "merge", "quantize", "api"},
}
MACHINES = {"hw/sm90", "hw/sim"}
# The one place that picks the machine, the tools that show the simulator at work, and the tests of both.
VERBS = "src/hw/hw.h"
MAY_NAME_A_MACHINE = (VERBS, "src/hw/sm90/", "src/hw/sim/", "apps/sim/", "apps/tandem/sim.cpp", "tests/")

CPP = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"}
CUDA = {".cu", ".cuh"}
CODE = CPP | {".py", ".cmake", ".sh", ".bash"}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
MACHINE_PATH = re.compile(r"(?<![\w.}/-])/(work|home|root|Users|mnt|scratch|tmp)/\w")
REGISTRY = re.compile(
    r"\b(pypi|pythonhosted|deb\.debian|security\.debian|snapshot\.debian|npmjs|anaconda)\.(org|com)\b"
    r"|\b(archive\.ubuntu|developer\.download\.nvidia)\.com\b|\bcrates\.io\b"
    r"|--(extra-)?index-(url)|--trusted-(host)|https?://(localhost|\d+\.\d+\.\d+\.\d+|[\w.-]+:\d+)")


def layer_of(path):
    """The folder of src that a path relative to src belongs to; None for other headers."""
    folder = "/".join(path.split("/")[:-1])
    while folder:
        if folder in LAYERS:
            return folder
        folder = folder.rpartition("/")[0]
    return None


def source_files(root):
    """All files of the tree but those of the directories that .gitignore names."""
    ignore = root / ".gitignore"
    names = ignore.read_text().split() if ignore.exists() else []
    ignored = [".git"] + [name.strip("/") for name in names]
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(s for s in subfolders if not any(fnmatch.fnmatch(s, i) for i in ignored))
        for name in sorted(set(files) - {".git"}):  # a file where the tree is a worktree
            yield pathlib.Path(folder, name)


def text_of(file):
    """The file's text, or None for binary files."""
    data = file.read_bytes()
    if b"\0" in data[:4096]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def check_include(path, included):
    target = layer_of(included)
    if target in MACHINES and not path.startswith(MAY_NAME_A_MACHINE):
        yield f"includes {included}: nothing above hw may name a machine; include hw/hw.h"
    if path.startswith("include/") and not included.startswith("tandem/") and "/" in included:
        yield f"includes {included}: a public header needs the standard library and tandem/ only"
    if path.startswith("examples/") and target:
        yield f"includes {included}: an example uses the public headers only"
    if not path.startswith("src/"):
        return
    own = layer_of(path.removeprefix("src/"))
    if own is None:
        yield "lies in no layer: add its folder to LAYERS and to the layers of CONTRIBUTING.md"
    elif target and target not in LAYERS[own] and not (path == VERBS and target in MACHINES):
        yield f"includes {included}: {own} may include {', '.join(sorted(LAYERS[own]))} only"
    if included.startswith("tandem/") and included not in ("tandem/tandem.h", "tandem/types.h", "tandem/study.h"):
        yield f"includes {included}: the inside knows the C interface only"


def check_includes(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            for complaint in check_include(path, match.group(1)):
                yield number, complaint
            if path.startswith("src/") and '"' in line and "/" not in match.group(1):
                yield number, f'includes "{match.group(1)}": write the path from src/'


def check_words(path, suffix, code):
    """Words of C++ that have their places, in code without comments and strings."""
    for number, line in enumerate(code.splitlines(), 1):
        if re.search(r"\b(asm|__asm__|__asm)\b", line) and not path.startswith("src/hw/sm90/"):
            yield number, "inline assembly belongs below src/hw/sm90"
        if re.search(r"\b__global__\b|<<<", line) and suffix not in CUDA:
            yield number, "__global__ and <<< belong in .cu files"


def check_shape(name, lines, parameters):
    if lines > MAX_FUNCTION_LINES:
        yield f"{name} has {lines} lines, more than {MAX_FUNCTION_LINES}"
    if parameters > MAX_PARAMETERS:
        yield f"{name} has {parameters} parameters, more than {MAX_PARAMETERS}"


def check_cpp(path, suffix, text):
    yield from check_includes(path, text)
    code = blank(text)
    yield from check_words(path, suffix, code)
    for function in functions(code):
        for complaint in check_shape(function.name, function.lines, function.parameters):
            yield function.line, complaint


def check_python(path, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Keyword-only ones are named at the call; self is the object.
            positional = [a for a in node.args.posonlyargs + node.args.args if a.arg not in ("self", "cls")]
            parameters = 0 if path in FOREIGN_SIGNATURES else len(positional)
            for complaint in check_shape(node.name, node.end_lineno - node.lineno + 1, parameters):
                yield node.lineno, complaint


def check_text(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if match := MACHINE_PATH.search(line):
            yield number, f"names a place of one machine: {match.group(0)}..."
        if match := REGISTRY.search(line):
            yield number, f"names a package registry or its settings: {match.group(0)}"
        if path.startswith(("src/", "include/")) and re.search(r"\btorch\b|\bATen\b|\bc10\b", line):
            yield number, "knows of PyTorch, which has no place in the library"


def check_file(path, text):
    """Yields (line, complaint) for one file; `path` is relative to the root, with slashes."""
    suffix = pathlib.PurePosixPath(path).suffix
    shebang = text.partition("\n")[0] if text.startswith("#!") else ""
    is_code = suffix in CODE or bool(shebang) or path.endswith("CMakeLists.txt")
    yield from check_text(path, text)
    if is_code and (lines := len(text.splitlines())) > MAX_FILE_LINES:
        yield 1, f"has {lines} lines, more than {MAX_FILE_LINES}"
    if suffix in CPP:
        yield from check_cpp(path, suffix, text)
    if suffix == ".py" or "python" in shebang:
        yield from check_python(path, text)


def check_tree(root):
    """All complaints about the tree, as 'path:line: complaint'."""
    root = pathlib.Path(root)
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        if (text := text_of(file)) is not None:
            for line, complaint in check_file(path, text):
                yield f"{path}:{line}: {complaint}"


def run(check):
    """Prints what `check` yields for the tree that the command line names; exit code 1 if there is anything."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {pathlib.Path(sys.argv[0]).name} ROOT")
    complaints = list(check(sys.argv[1]))
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    run(check_tree)
