#!/usr/bin/env python3
"""Prints a software bill of materials of a package: every crate that is compiled into its program, with version,
source, licence and checksum, as CycloneDX 1.5 in JSON (https://cyclonedx.org/docs/1.5/json/).

    tools/sbom.py > target/sbom.json
    tools/sbom.py --check FILE      whether a file is one, and has each crate of Cargo.lock that the program needs

What only tests need is not in it. Two runs on one commit print the same bytes.
"""

import argparse
import json
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "atoll"
NAMESPACE = uuid.UUID("6a3c4c52-7d2c-5c3e-9a6e-2f1c6c0b7a11")


def read_metadata(platform):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", platform]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def checksums():
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]): package.get("checksum") for package in packages}


def needed(metadata):
    """What the package is compiled of, by id: the ids that each needs. Tests of it need more."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    [start] = [package["id"] for package in metadata["packages"] if package["name"] == PACKAGE]
    found, waiting = {}, [start]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        kinds = lambda used: {kind["kind"] for kind in used["dep_kinds"]}
        found[package] = sorted(used["pkg"] for used in nodes[package]["deps"] if kinds(used) != {"dev"})
        waiting += found[package]
    return start, found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def licences(package):
    # Older crates write a slash for "or".
    text = (package["license"] or "").replace("/", " OR ").replace("  ", " ")
    if text:
        return [{"expression": text}]
    return [{"license": {"name": f"see {package['license_file']} of the crate"}}] if package["license_file"] else []


def component(package, checksum, kind="library"):
    made = {"type": kind, "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
    made["purl"] = purl(package)
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    made["licenses"] = licences(package)
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def bill(platform):
    metadata = read_metadata(platform)
    start, graph = needed(metadata)
    packages = {package["id"]: package for package in metadata["packages"]}
    sums = checksums()
    of = lambda package: sums.get((package["name"], package["version"]))
    components = [component(packages[one], of(packages[one])) for one in graph if one != start]
    dependencies = [
        {"ref": purl(packages[one]), "dependsOn": sorted(purl(packages[used]) for used in uses)}
        for one, uses in graph.items()
    ]
    body = {
        "metadata": {
            "component": component(packages[start], None, "application"),
            "properties": [{"name": "platform", "value": platform}],
        },
        "components": sorted(components, key=lambda one: one["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda one: one["ref"]),
    }
    number = uuid.uuid5(NAMESPACE, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{number}", "version": 1}
    return head | body


def faults(found, expected):
    """What a bill lacks, or has too much."""
    if found.get("bomFormat") != "CycloneDX":
        yield "it is no bill of CycloneDX"
        return
    refs = lambda bill: {one["bom-ref"]: one for one in bill["components"]}
    has, wants = refs(found), refs(expected)
    yield from (f"{ref} is missing" for ref in sorted(wants.keys() - has.keys()))
    yield from (f"{ref} is not in the program" for ref in sorted(has.keys() - wants.keys()))
    yield from (f"{ref} has no licence" for ref, one in sorted(has.items()) if not one.get("licenses"))
    unhashed = [
        ref for ref, one in sorted(has.items()) if not one.get("hashes") and not one["name"].startswith("atoll")
    ]
    yield from (f"{ref} has no checksum" for ref in unhashed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", default="x86_64-unknown-linux-gnu", help="the target that is compiled for")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare this one")
    arguments = parser.parse_args()
    made = bill(arguments.platform)
    if not arguments.check:
        json.dump(made, sys.stdout, indent=1)
        print()
        return
    complaints = list(faults(json.loads(arguments.check.read_text()), made))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
