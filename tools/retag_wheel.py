"""Writes a wheel again with another platform tag, for a library that was made by a cross compiler.

usage: python3 tools/retag_wheel.py WHEEL PLATFORM FOLDER
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, platform, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    stem = source.stem.rpartition("-")[0]
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(folder / f"{stem}-{platform}.whl", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        lines = []
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                record = entry
                continue
            if entry.filename.endswith(".dist-info/WHEEL"):
                text = re.sub(r"(?m)^(Tag: .*)-[^-]+$", rf"\1-{platform}", data.decode())
                data = text.encode()
            new.writestr(entry, data, zipfile.ZIP_DEFLATED)
            lines.append(record_line(entry.filename, data))
        lines.append(f"{record.filename},,")
        new.writestr(record, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
