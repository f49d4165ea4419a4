"""Fetch what the dashboard's pages load, and the auditor of its tests, from npm.

    python tools/vendor_dashboard.py            fetch, check the hashes, write the files
    python tools/vendor_dashboard.py --check    compare the files in the package with the hashes

The files are kept in the repository, so nobody who installs or builds Toril needs this.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "src/toril/dashboard/static/vendor"
TESTS = ROOT / "tests/dashboard/vendor"

FILES = {
    "htmx.org@2.0.11": {
        "package/dist/htmx.min.js": (
            STATIC / "htmx.min.js",
            "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
        ),
        "package/LICENSE": (
            STATIC / "htmx.LICENSE.txt",
            "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
        ),
    },
    "uplot@1.6.32": {
        "package/dist/uPlot.iife.min.js": (
            STATIC / "uPlot.iife.min.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        "package/dist/uPlot.min.css": (
            STATIC / "uPlot.min.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
        "package/LICENSE": (
            STATIC / "uPlot.LICENSE.txt",
            "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        ),
    },
    "axe-core@4.14.0": {
        "package/axe.min.js": (
            TESTS / "axe.min.js",
            "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878",
        ),
        "package/LICENSE": (
            TESTS / "axe.LICENSE.txt",
            "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
        ),
    },
}
"""For each package: the file in it, where it goes, and its SHA-256."""


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        wrong = [
            str(place.relative_to(ROOT))
            for files in FILES.values()
            for place, digest in files.values()
            if not place.exists() or hashlib.sha256(place.read_bytes()).hexdigest() != digest
        ]
        print("\n".join(f"{name} is not what was vendored" for name in wrong) or "all as vendored")
        return 1 if wrong else 0
    for package, files in FILES.items():
        _fetch(package, files)
    return 0


def _fetch(package: str, files: dict[str, tuple[Path, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=directory, check=True, capture_output=True
        )
        archive = Path(directory) / packed.stdout.decode().split()[-1]
        with tarfile.open(archive) as tar:
            for member, (place, digest) in files.items():
                found = tar.extractfile(member)
                assert found is not None, f"{package} has no {member}"
                content = found.read()
                actual = hashlib.sha256(content).hexdigest()
                if actual != digest:
                    sys.exit(f"{package}: {member} has the hash {actual}, not {digest}")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
                print(f"{place.relative_to(ROOT)}  {len(content):,} bytes")


if __name__ == "__main__":
    sys.exit(main())
