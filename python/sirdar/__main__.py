"""python -m sirdar doctor | selftest [DEVICE] | explain PROBLEM [DEVICE]"""

import sys

import sirdar


def main(arguments):
    verb, *rest = arguments or ["help"]
    try:
        if verb == "doctor" and not rest:
            print(sirdar.doctor())
            return 0
        if verb == "selftest" and len(rest) <= 1:
            report = sirdar.selftest(*rest)
            print(report)
            return 0 if report.ok else 1
        if verb == "explain" and 1 <= len(rest) <= 2:
            print(sirdar.explain(rest[0], device=rest[1] if len(rest) > 1 else None))
            return 0
    except (ValueError, NotImplementedError, RuntimeError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
