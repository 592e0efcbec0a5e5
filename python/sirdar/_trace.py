"""From a Python function to the text of an expression, with the arrays and numbers that it reads."""

import builtins
import dis
import functools
import inspect
import math
import threading
import types
from typing import NamedTuple

from . import expressions
from ._said import said, shortened
from ._tensor import remember
from .expressions import BOOL, FP32, INT, NotInLanguage, Value, value_of

_POSITIONAL = {
    "score_mod": ("score", "b", "h", "q", "k"),
    "mask_mod": ("b", "h", "q", "k"),
}
_TYPES = {"score": FP32, "b": INT, "h": INT, "q": INT, "k": INT, "q_pos": INT}
_RESERVED = {
    *_TYPES, "true", "false", "inf", "min", "max", "abs", "floor", "exp", "exp2", "log", "tanh", "sigmoid", "sqrt",
}  # fmt: skip
_FOREIGN = ("sirdar", "numpy", "torch", "jax", "cupy", "math", "functools", "builtins")
# Attributes that give the same at every call; a function that reads others is traced at each.
_STEADY = frozenset(
    (*expressions._FUNCTIONS, *dir(expressions), *dir(math), "expressions", "shape", "ndim", "newaxis",
     "float32", "float64", "int32", "int64", "bool_", "finfo", "iinfo")
)  # fmt: skip
# Through these a function reaches what its code does not name.
_UNSTEADY = frozenset(
    ("globals", "locals", "vars", "eval", "exec", "getattr", "open", "__import__")
)
_MAX_TRACES = 256
_current = threading.local()
_traces = {}


class Reads:
    """The arrays that one call's expressions read, by name."""

    def __init__(self, tensors, scalars):
        self.given = dict(tensors or {})
        self.scalars = dict(scalars or {})
        self.names = {id(array): name for name, array in self.given.items()}
        self.found = {}  # name -> array: those that were not given by name

    def name_of(self, array, wished):
        known = self.names.get(id(array))
        if known is None:
            base = wished if wished.isidentifier() and wished.isascii() else "tensor"
            known, count = base + "_" if base in _RESERVED else base, 1
            while known in self.given or known in self.found or known in self.scalars:
                count += 1
                known = f"{base}_{count}"
            self.names[id(array)] = known
            self.found[known] = array
        return known

    def tensors(self):
        """A number in an array of no axes is read as the only element of one axis."""
        found = {
            name: array.reshape(1) if len(array.shape) == 0 else array
            for name, array in self.found.items()
        }
        return {**self.given, **found} or None


class Array:
    """Stands for an array of the caller's while a function is traced."""

    def __init__(self, array, name):
        self.array, self.name = array, name

    def __getitem__(self, index):
        return element_of(self.array, index, self.name)

    @property
    def shape(self):
        return tuple(self.array.shape)

    @property
    def ndim(self):
        return len(self.array.shape)

    def __len__(self):
        return len(self.array)

    def __getattr__(self, name):
        raise TypeError(
            f"{self.name}.{name} is not in the language; read elements of it, as in {self.name}[h]."
        )

    def _whole(self, *_):
        if len(self.array.shape):
            raise TypeError(
                f"{self.name} is an array of shape {list(self.shape)}; read an element, {self.name}[h]."
            )
        return element_of(self.array, 0, self.name)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        whole = [one._whole() if isinstance(one, Array) else one for one in inputs]
        return Value.__array_ufunc__(None, ufunc, method, *whole, **options)

    @classmethod
    def __torch_function__(cls, function, types, inputs=(), options=None):
        whole = [one._whole() if isinstance(one, Array) else one for one in inputs]
        return Value.__torch_function__(function, types, whole, options)


def _whole_operator(name):
    def method(self, *others):
        others = [one._whole() if isinstance(one, Array) else one for one in others]
        return getattr(self._whole(), name)(*others)

    return method


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow neg pos abs "
    "rpow matmul rmatmul lshift rlshift rshift rrshift divmod rdivmod round trunc "
    "lt le gt ge eq ne and rand or ror xor rxor invert bool float int"
).split():
    setattr(Array, f"__{_name}__", _whole_operator(f"__{_name}__"))


def element_of(array, index, name="tensor"):
    """array[index] with at least one index that is traced."""
    reads = getattr(_current, "reads", None)
    if reads is None:
        raise TypeError(
            "an array is read at a traced position outside of a trace; use it inside the function."
        )
    indices = index if isinstance(index, tuple) else (index,)
    rank = max(len(array.shape), 1)
    if len(indices) != rank:
        raise ValueError(
            f"{name}: it has rank {rank} and {len(indices)} indices are given; give one for each axis."
        )
    texts = []
    for one in indices:
        if isinstance(one, (slice, type(None), type(Ellipsis))):
            raise TypeError(
                f"{name}: {said(one)} is not in the language; give one whole number for each axis."
            )
        value = value_of(one)
        if value.type != INT:
            raise TypeError(
                f"{name}: the index '{shortened(value.text)}' is {value.type} and must be a whole number."
            )
        texts.append(value.text)
    # "torch.int32" or "int32"; what the language has not the library refuses by name.
    dtype = str(array.dtype).rpartition(".")[2]
    kind = BOOL if dtype.startswith("bool") else INT if dtype.startswith("int") else FP32
    return Value(f"{reads.name_of(array, name)}[{', '.join(texts)}]", kind)


def _is_array(value):
    return (
        not isinstance(value, (type, types.ModuleType, int, float, bool, str))
        and hasattr(value, "shape")
        and hasattr(value, "dtype")
        and (hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"))
        and not _is_numpy_scalar(value)
    )


def _is_numpy_scalar(value):
    return any(
        base.__module__ == "numpy" and base.__name__ == "generic" for base in type(value).__mro__
    )


class _Names(NamedTuple):
    """What a code and the codes within it name: lambdas and comprehensions read globals of their own."""

    globals: tuple
    is_steady: bool  # nothing else decides what the function gives


@functools.lru_cache(maxsize=_MAX_TRACES)
def _names_of(code):
    names, is_steady = {}, True
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[one.argval] = None
            is_steady = is_steady and one.argval not in _UNSTEADY
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            is_steady = is_steady and one.argval in _STEADY
        elif one.opname.startswith(("IMPORT_", "LOAD_SUPER", "STORE_GLOBAL", "STORE_ATTR")):
            is_steady = False
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names_of(inner)
            names.update(dict.fromkeys(more.globals))
            is_steady = is_steady and more.is_steady
    return _Names(tuple(names), is_steady)


def _captured(function):
    """(name, value) of everything that a function reaches from outside of its parameters."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _names_of(code).globals:
        if name in function.__globals__:
            yield name, function.__globals__[name]


class _Binder:
    """Rebuilds functions with stand-ins for the arrays and scalars that they reach."""

    def __init__(self, reads):
        self.reads = reads
        self.rebuilt = {}

    def stand_in(self, name, value):
        if name in self.reads.scalars:
            return Value(name, FP32)
        if name in self.reads.given:
            return Array(self.reads.given[name], name)
        if _is_array(value):
            return Array(value, name)
        if isinstance(value, types.FunctionType) and _is_users(value):
            return self.bound(value)
        return value

    def bound(self, function):
        if function in self.rebuilt:
            return self.rebuilt[function]
        code = function.__code__
        scope = dict(function.__globals__)
        cells = tuple(types.CellType() for _ in code.co_freevars)
        copy = types.FunctionType(code, scope, function.__name__, None, cells)
        self.rebuilt[function] = copy  # before what it names is bound: that may be itself
        named = {**self.reads.given, **self.reads.scalars}
        for name in _names_of(code).globals:
            if name in scope or (name in named and not hasattr(builtins, name)):
                scope[name] = self.stand_in(name, scope.get(name))
        copy.__defaults__ = tuple(
            self.stand_in(name, value)
            for name, value in zip(_default_names(function), function.__defaults__ or ())
        )
        copy.__kwdefaults__ = {
            name: self.stand_in(name, value)
            for name, value in (function.__kwdefaults__ or {}).items()
        }
        for name, cell, source in zip(code.co_freevars, cells, function.__closure__ or ()):
            try:
                cell.cell_contents = self.stand_in(name, source.cell_contents)
            except ValueError:
                continue
        return copy


def _default_names(function):
    count = len(function.__defaults__ or ())
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return names[len(names) - count :]


def _is_users(function):
    return (function.__module__ or "").partition(".")[0] not in _FOREIGN


def _arguments(role, function, reads):
    """What the function is called with: by the language's names where it uses only them, else in their order."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise TypeError(
            f"{role}: {said(function)} has no signature to trace; pass a lambda or a text."
        ) from None
    needed = [one for one in parameters if one.default is one.empty]
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed):
        raise TypeError(f"{role}: *args and **kwargs say nothing to a trace; name the parameters.")
    known = {name: Value(name, kind, is_never_negative=kind == INT and name != "q_pos")
             for name, kind in _TYPES.items() if name != "score" or role == "score_mod"}  # fmt: skip
    for name, array in reads.given.items():
        known.setdefault(name, Array(array, name))
    for name in reads.scalars:
        known.setdefault(name, Value(name, FP32))
    names = [one.name for one in needed]
    if all(name in known for name in names):
        return {name: known[name] for name in names}
    order = _POSITIONAL[role]
    if len(names) != len(order):
        raise TypeError(
            f"{role}: its parameters are ({', '.join(names)}); name them {', '.join(known)}, or take "
            f"{len(order)} in the order ({', '.join(order)})."
        )
    return {name: known[word] for name, word in zip(names, order)}


def _run(role, function, reads):
    if isinstance(function, str):
        return function
    if not callable(function):
        raise TypeError(f"{role}: {type(function).__name__} is neither a text nor a function.")
    bound = function
    if isinstance(function, functools.partial) and isinstance(function.func, types.FunctionType):
        binder = _Binder(reads)
        keywords = {name: binder.stand_in(name, value) for name, value in function.keywords.items()}
        bound = functools.partial(binder.bound(function.func), *function.args, **keywords)
    elif isinstance(function, types.FunctionType):
        bound = _Binder(reads).bound(function)
    arguments = _arguments(role, bound, reads)
    previous = getattr(_current, "reads", None)
    _current.reads = reads
    try:
        result = bound(**arguments)
        if isinstance(result, Array):
            result = result._whole()
        value = value_of(result)
    except NotInLanguage as error:
        raise TypeError(f"{role}: {error}") from error
    except RecursionError:
        raise TypeError(
            f"{role}: the function calls itself without an end while it is traced; a condition on a traced "
            "value cannot stop it, so write it without recursion."
        ) from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{role}: {error}") from error
    finally:
        _current.reads = previous
    if role == "mask_mod" and value.type != BOOL:
        raise TypeError(
            f"mask_mod: it returns the number '{shortened(value.text)}' and must return a condition, as in q >= k."
        )
    if role == "score_mod" and value.type == BOOL:
        raise TypeError(
            f"score_mod: it returns the condition '{shortened(value.text)}' and must return a score."
        )
    return value.text


def _steady_key(value):
    """What is equal for values that a trace takes alike, or None where that cannot be told."""
    kind = type(value)
    if kind in (int, bool, str, type(None)):
        return (kind, value)
    if kind is float:
        return (kind, repr(value))  # 0.0 and -0.0 are equal and not the same
    if isinstance(value, types.ModuleType):
        return value if value.__name__.partition(".")[0] in _FOREIGN else None
    if kind is types.BuiltinFunctionType:  # a method of an object reads the object
        is_free = value.__self__ is None or isinstance(value.__self__, types.ModuleType)
        return (
            value if is_free and not _is_users(value) and value.__name__ not in _UNSTEADY else None
        )
    if kind is types.FunctionType and not _is_users(value) and not value.__closure__:
        return value
    return None


def _described(array):
    return (str(array.dtype), tuple(array.shape))


def _key_of(function, tensors, scalars):
    """Equal for calls whose text is the same, or None where that cannot be told; and the arrays found."""
    if function is None or isinstance(function, str):
        return function, ()
    if type(function) is not types.FunctionType or not _names_of(function.__code__).is_steady:
        return None, ()
    parts, arrays = [function.__code__], []
    defaults = zip(_default_names(function), function.__defaults__ or ())
    for name, value in (*_captured(function), *defaults, *(function.__kwdefaults__ or {}).items()):
        if name in scalars or name in tensors:
            parts.append(name)
        elif _is_array(value):
            parts.append((name, _described(value)))
            arrays.append((name, value))
        else:
            part = _steady_key(value)
            if part is None:
                return None, ()
            parts.append((name, part))
    return tuple(parts), arrays


def _key_of_call(functions, tensors, scalars):
    """(key, arrays found) of both functions as _key_of gives them for one."""
    keys = [_key_of(function, tensors, scalars) for function in functions]
    if any(part is None and function is not None for (part, _), function in zip(keys, functions)):
        return None, ()
    arrays = [*keys[0][1], *keys[1][1]]
    # Which of the captured arrays are one and the same, or a given one, decides their names.
    ids = [id(array) for _, array in arrays]
    same = tuple(ids.index(one) for one in ids)
    names = {id(array): name for name, array in tensors.items()}
    try:
        given = tuple((name, _described(array)) for name, array in tensors.items())
        key = (keys[0][0], keys[1][0], same, given, tuple(map(names.get, ids)), tuple(scalars))
        hash(key)
    except (AttributeError, TypeError):  # what is no array, or a shape that is not known yet
        return None, ()
    return key, arrays


def traced(score_mod, mask_mod, tensors, scalars):
    """(score_mod, mask_mod, tensors, scalars) with the functions as texts and the arrays they reach added."""
    tensors, scalars = tensors or {}, scalars or {}
    key, arrays = _key_of_call((score_mod, mask_mod), tensors, scalars)
    known = None if key is None else _traces.get(key)
    if known is not None:
        texts, places = known
        found = {}
        for name, place in places:
            array = arrays[place][1]
            found[name] = array.reshape(1) if len(array.shape) == 0 else array
        return (*texts, {**tensors, **found} or None, scalars or None)
    reads = Reads(tensors, scalars)
    texts = tuple(
        None if function is None else _run(role, function, reads)
        for role, function in (("score_mod", score_mod), ("mask_mod", mask_mod))
    )
    if key is not None:
        positions = {id(array): place for place, (_, array) in reversed(list(enumerate(arrays)))}
        if all(id(array) in positions for array in reads.found.values()):
            places = [(name, positions[id(array)]) for name, array in reads.found.items()]
            remember(_traces, key, (texts, places), _MAX_TRACES)
    return (*texts, reads.tensors(), scalars or None)
