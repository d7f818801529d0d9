#!/usr/bin/env python3
"""Says which Python functions are longer than a screen.

tools/function_lengths.py PATH ...    files, or directories with files
"""

import ast
import pathlib
import sys

LINES_MAX = 60


def functions_of(path):
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def main():
    paths = [pathlib.Path(argument) for argument in sys.argv[1:]]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    too_long = [
        f"{file}:{line}: {name} has {length} lines; {LINES_MAX} are allowed"
        for file in files
        for name, line, length in functions_of(file)
        if length > LINES_MAX
    ]
    print("\n".join(too_long), end="\n" if too_long else "")
    sys.exit(bool(too_long))


if __name__ == "__main__":
    main()
