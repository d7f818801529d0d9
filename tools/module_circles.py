#!/usr/bin/env python3
"""Fails if a circle of modules inside a crate grows, or a new one appears.

    tools/module_circles.py            # check against CIRCLES
    tools/module_circles.py --show     # print the modules of every circle
    tools/module_circles.py --counts   # print the table of this file

A module depends on another if its code names something that is defined there: `use` items and paths that begin
with crate, super or self. Names that a module only passes on (`pub use`) count for the module that defines them.
Tests do not count. A circle is a set of modules each of which depends on all others, on the way over some of them.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Modules in the largest circle of each crate, and modules in circles of any size. Both only shrink.
CIRCLES = {
    "admin": (3, 3),  # of 33
    "audit": (10, 10),  # of 15
    "bench": (3, 6),  # of 48
    "cluster": (6, 6),  # of 52
    "console": (2, 4),  # of 50
    "coordinator": (2, 4),  # of 11
    "ec": (3, 3),  # of 7
    "exports": (2, 2),  # of 13
    "fabric": (5, 5),  # of 20
    "files": (2, 2),  # of 5
    "iam": (3, 6),  # of 55
    "image": (4, 11),  # of 48
    "keys": (2, 4),  # of 15
    "lab": (4, 6),  # of 49
    "md5": (2, 2),  # of 3
    "nbd": (2, 2),  # of 15
    "node": (3, 3),  # of 38
    "nvme": (5, 10),  # of 36
    "osd": (3, 5),  # of 43
    "outgoing": (2, 2),  # of 7
    "pg": (42, 42),  # of 67
    "placement": (4, 4),  # of 7
    "reactor": (9, 9),  # of 22
    "s3": (2, 4),  # of 121
    "sim": (14, 14),  # of 33
    "storage": (4, 4),  # of 8
    "store": (4, 16),  # of 57
    "types": (5, 11),  # of 40
    "wire": (3, 3),  # of 11
    "atoll": (5, 11),  # of 95
}

ATTRIBUTE = re.compile(r"#\[cfg\((?:all\()?test\b")
# Comments, and raw, plain and character literals: the first of them at a place is the one that is there.
TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\br(#+)".*?"\1|\br"[^"]*"|"(?:[^"\\]|\\.)*"|'(?:[^'\\\n]|\\[^'\n]+|\\')'""", re.DOTALL
)
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")


def without_tests(text):
    """Returns Rust code without comments, strings, and items that are compiled for tests only."""
    text = TEXT.sub(lambda match: " " + "\n" * match[0].count("\n"), text)
    while match := ATTRIBUTE.search(text):
        end = item_end(text, text.index("]", match.end()) + 1)
        text = text[: match.start()] + text[end:]
    return text


def item_end(text, start):
    """Returns the end of the item that begins at `start`: behind its braces, or its semicolon."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index + 1
        elif text[index] == ";" and depth == 0:
            return index + 1
    return len(text)


def leaves(tree):
    """Yields the paths of a `use` tree, each a list of names; the last may be `*`."""
    tree = tree.strip()
    if "{" not in tree:
        path = re.sub(r"\s+as\s+(\w+)", r"::=\1", tree)
        yield [part.strip() for part in path.split("::") if part.strip()]
        return
    head, rest = tree.split("{", 1)
    prefix = [part.strip() for part in head.split("::") if part.strip()]
    depth, begin, body = 0, 0, rest[: rest.rindex("}")]
    for index, letter in enumerate(body + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if body[begin:index].strip():
                yield from (prefix + leaf for leaf in leaves(body[begin:index]))
            begin = index + 1


class Crate:
    """The modules of a crate, their names, and their dependencies."""

    def __init__(self, source):
        self.modules = {}
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            name = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
            if "bin" in parts or "tests" in parts or parts[-1].endswith("tests"):
                continue
            self.modules[name] = without_tests(path.read_text())
        self.passed_on = {name: dict(self.names_of(name)) for name in self.modules}

    def absolute(self, module, path):
        """Returns a path from the crate's root, or None for one that leads elsewhere."""
        if path[0] == "crate":
            return tuple(path[1:])
        if path[0] == "self":
            return module + tuple(path[1:])
        if path[0] == "super":
            while path and path[0] == "super":
                module, path = module[:-1], path[1:]
            return module + tuple(path)
        return module + tuple(path) if module + (path[0],) in self.modules else None

    def names_of(self, module):
        """Yields the names that a module takes from others, with their paths."""
        for tree in USE.findall(self.modules[module]):
            for leaf in leaves(tree):
                name = leaf[-1].removeprefix("=")
                target = self.absolute(module, leaf[:-1] if leaf[-1].startswith("=") else leaf)
                if target is not None:
                    yield name if name != "self" else leaf[-2], target

    def definer(self, path, seen=()):
        """Returns the module that defines what a path from the root names."""
        module = ()
        for index, name in enumerate(path):
            if module + (name,) in self.modules:
                module += (name,)
                continue
            passed = self.passed_on.get(module, {}).get(name)
            if passed and (module, name) not in seen:
                return self.definer(passed + path[index + 1 :], (*seen, (module, name)))
            break
        return module

    def edges(self):
        """Returns {module: modules that it depends on}."""
        found = {}
        for module, text in self.modules.items():
            used = set()
            code = USE.sub("", text)
            for name, target in self.names_of(module):
                # A name that is only passed on is no dependency.
                if name == "*" or re.search(rf"\b{re.escape(name)}\b", code):
                    used.add(self.definer(target))
            for path in PATH.findall(code):
                used.add(self.definer(self.absolute(module, path.split("::"))))
            found[module] = used - {module}
        return found


def circles(edges):
    """Returns the strongly connected components with more than one module (R. Tarjan, 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in edges:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main():
    sys.setrecursionlimit(10_000)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--counts", action="store_true")
    options = parser.parse_args()
    failures = 0
    sources = {path.parent.name: path for path in sorted(ROOT.glob("crates/*/src"))} | {"atoll": ROOT / "atoll/src"}
    for name, source in sources.items():
        crate = Crate(source)
        found = circles(crate.edges())
        counts = (len(found[0]) if found else 0, sum(map(len, found)))
        if options.counts and counts != (0, 0):
            print(f'    "{name}": {counts},  # of {len(crate.modules)}')
        if options.show and found:
            print(name)
            for circle in found:
                print("   ", ", ".join("::".join(module) or "(root)" for module in circle))
        if options.counts or options.show or counts == CIRCLES.get(name, (0, 0)):
            continue
        failures += 1
        most = CIRCLES.get(name, (0, 0))
        if any(now > before for now, before in zip(counts, most)):
            print(
                f"{name}: error: {counts} modules in the largest circle and in all, at most {most}: --show lists them"
            )
        else:
            print(f"{name}: error: its circles are smaller: write {counts} into CIRCLES of tools/module_circles.py")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
