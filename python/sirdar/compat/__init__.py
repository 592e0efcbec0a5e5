"""Other libraries' names for this one: existing code that imports flash-attn runs unchanged after

    import sirdar.compat
    sirdar.compat.install()

flash_attn             FlashAttention-2: functions, bert_padding, layers.rotary, ops.triton.rotary
flash_attn_2_cuda      the extension module below it
flash_attn_interface   FlashAttention-3, also as flash_attn_3.flash_attn_interface

and for their operators, torch.ops.flash_attn and torch.ops.flash_attn_3. The modules can also be imported from here, `from sirdar.compat.flash_attn import flash_attn_func`.
"""

import importlib
import importlib.metadata
import sys

_MODULES = (
    "flash_attn",
    "flash_attn.flash_attn_interface",
    "flash_attn.bert_padding",
    "flash_attn.layers",
    "flash_attn.layers.rotary",
    "flash_attn.ops",
    "flash_attn.ops.triton",
    "flash_attn.ops.triton.rotary",
    "flash_attn_2_cuda",
    "flash_attn_interface",
    "flash_attn_config",
    "flash_attn_3",
    "flash_attn_3._C",
    "flash_attn_3.flash_attn_interface",
)
_LIES_AT = {"flash_attn_3.flash_attn_interface": "flash_attn_interface"}  # where not at its own name
_PACKAGES = {"flash_attn": "2.8.3", "flash_attn_3": "3.0.0"}  # versions of the interfaces


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata.version("flash_attn") asks for; frameworks decide by it."""

    def __init__(self, name):
        self._name = name

    def read_text(self, filename):
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {_PACKAGES[self._name]}\n"
        if filename == "top_level.txt":
            return "flash_attn\n" if self._name == "flash_attn" else "flash_attn_interface\nflash_attn_3\n"
        return None

    def locate_file(self, path):
        return path


class _Finder:
    """Finds no modules, which stand in sys.modules, only the distributions."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None

    @staticmethod
    def find_distributions(context):
        if context.name is None:
            return [_Distribution(name) for name in _PACKAGES]
        wanted = context.name.replace("-", "_").lower()
        return [_Distribution(wanted)] if wanted in _PACKAGES else []


def _foreign():
    """Names that another package has taken."""
    return [
        name
        for name in _MODULES
        if name in sys.modules and not sys.modules[name].__name__.startswith(__name__)
    ]


def install(replace: bool = False) -> None:
    """Makes `import flash_attn`, `flash_attn_2_cuda` and `flash_attn_interface` find this library's.

    An installed flash-attn is passed over. One that was imported before keeps being used by who holds
    it, so that is a RuntimeError, unless replace=True says that later imports alone matter. Needs torch.
    """
    foreign = _foreign()
    if foreign and not replace:
        where = getattr(sys.modules[foreign[0]], "__file__", "elsewhere")
        raise RuntimeError(
            f"{foreign[0]}: was imported from {where} before install(); call it first, or pass "
            "replace=True if only later imports matter."
        )
    for name in _MODULES:
        sys.modules[name] = importlib.import_module(f"{__name__}.{_LIES_AT.get(name, name)}")
    importlib.import_module(f"{__name__}._operators").define()
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def uninstall() -> None:
    """Undoes install(): modules that were imported stay what they are, and the operators are there no more."""
    for name in _MODULES:
        if name in sys.modules and sys.modules[name].__name__.startswith(__name__):
            del sys.modules[name]
    operators = sys.modules.get(f"{__name__}._operators")
    if operators is not None:
        operators.undefine()
    if _Finder in sys.meta_path:
        sys.meta_path.remove(_Finder)
