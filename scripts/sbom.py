#!/usr/bin/env python3
"""Writes the software bill of materials of the `forerun` binary: CycloneDX 1.5, from `cargo metadata`.

Usage: sbom.py TARGET [FEATURES] > forerun.cdx.json

It lists the packages that are linked into the binary for TARGET, with their licences, checksums and dependencies.
"""

import json
import subprocess
import sys
import tomllib


def metadata(target, features):
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}"]
    command += ["--manifest-path=crates/cli/Cargo.toml"]
    if features:
        command += [f"--features={features}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def linked(nodes, root):
    """Returns the ids of the packages that are linked into the root, without those of builds and tests."""
    found, waiting = set(), [root]
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            waiting += dependencies(nodes[package])
    return found


def dependencies(node):
    return [d["pkg"] for d in node["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums, kind="library"):
    entry = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package.get("description"):
        entry["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # Old packages separate licences with a slash.
        expression = package["license"].replace(" / ", "/").replace("/", " OR ")
        entry["licenses"] = [{"expression": expression}]
    if checksum := checksums.get((package["name"], package["version"])):
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def main():
    target, features = sys.argv[1], ",".join(sys.argv[2:])
    data = metadata(target, features)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == "forerun-cli")
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in locked}
    ids = sorted(linked(nodes, root), key=lambda id: reference(packages[id]))
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(packages[root], checksums, "application"),
            "properties": [{"name": "cdx:rustc:target", "value": target}],
        },
        "components": [component(packages[id], checksums) for id in ids if id != root],
        "dependencies": [
            {
                "ref": reference(packages[id]),
                "dependsOn": sorted({reference(packages[d]) for d in dependencies(nodes[id])}),
            }
            for id in ids
        ],
    }
    print(json.dumps(bom, indent=1))


if __name__ == "__main__":
    main()
