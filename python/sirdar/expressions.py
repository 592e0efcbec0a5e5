"""Score and mask modifications written in Python: what a lambda is traced with.

    sirdar.attention(q, k, v, score_mod=lambda score, b, h, q, k: score + slope[h] * (k - q))

The function runs once on values that remember what is done to them and becomes the text of
docs/expressions.md. Python's operators work on them, with Python's meaning (// and % round down, / of ints
is fractional), and so do the functions here and NumPy's and torch's of the same names. Conditions are
where(condition, x, y), & for and, | for or, ~ for not: `if`, `and`, `or`, `not` and chained comparisons
would need a value that does not exist yet.
"""

import math
import operator
from typing import Any

from ._said import said as _said, shortened as _shortened

FP32, INT, BOOL = "fp32", "int", "bool"

# How tightly operators bind, as in docs/expressions.md; larger is tighter.
_PRECEDENCE = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
_UNARY, _PRIMARY, _CHOICE = 7, 8, 0


class NotInLanguage(AttributeError):
    """A method that a traced value does not have."""


class Value:
    """A number or truth that is not known yet: its text and its type."""

    __slots__ = ("is_never_negative", "precedence", "text", "type")

    def __init__(self, text, type, precedence=_PRIMARY, is_never_negative=False):
        self.text, self.type, self.precedence = text, type, precedence
        self.is_never_negative = is_never_negative

    def __repr__(self):
        return f"<traced {self.type}: {self.text}>"

    # --- arithmetic ---

    def __add__(self, other):
        return _arithmetic("+", self, other)

    def __radd__(self, other):
        return _arithmetic("+", other, self)

    def __sub__(self, other):
        return _arithmetic("-", self, other)

    def __rsub__(self, other):
        return _arithmetic("-", other, self)

    def __mul__(self, other):
        return _arithmetic("*", self, other)

    def __rmul__(self, other):
        return _arithmetic("*", other, self)

    def __truediv__(self, other):
        return _divided(self, other)

    def __rtruediv__(self, other):
        return _divided(other, self)

    def __floordiv__(self, other):
        return _floor_divided(self, other)

    def __rfloordiv__(self, other):
        return _floor_divided(other, self)

    def __mod__(self, other):
        return _remainder(self, other)

    def __rmod__(self, other):
        return _remainder(other, self)

    def __pow__(self, other):
        if isinstance(other, Value) or hasattr(other, "_whole"):
            raise TypeError(
                f"'{_shortened(self.text)}' to the power of a traced value is not in the language; write exp(y * log(x))."
            )
        if other == 0.5:
            return sqrt(self)
        if not isinstance(other, int) or not 1 <= other <= 8:
            raise TypeError(
                f"a traced value to the power of {_said(other)} is not in the language; write exp(y * log(x))."
            )
        result = self
        for _ in range(other - 1):
            result = result * self
        return result

    def __neg__(self):
        value = _number(self)
        return Value("-" + _inside(value, _UNARY), value.type, _UNARY)

    def __pos__(self):
        return _number(self)

    def __abs__(self):
        return _call("abs", self)

    # --- comparison and logic ---

    def __lt__(self, other):
        return _compared("<", self, other)

    def __le__(self, other):
        return _compared("<=", self, other)

    def __gt__(self, other):
        return _compared(">", self, other)

    def __ge__(self, other):
        return _compared(">=", self, other)

    def __eq__(self, other):
        return _compared("==", self, other)

    def __ne__(self, other):
        return _compared("!=", self, other)

    def __and__(self, other):
        return _logic("&&", self, other)

    def __rand__(self, other):
        return _logic("&&", other, self)

    def __or__(self, other):
        return _logic("||", self, other)

    def __ror__(self, other):
        return _logic("||", other, self)

    def __xor__(self, other):
        return _compared("!=", _truth(self), _truth(value_of(other)))

    __rxor__ = __xor__

    def __invert__(self):
        return Value("!" + _inside(_truth(self), _UNARY), BOOL, _UNARY)

    # --- what needs a value ---

    def __bool__(self):
        raise TypeError(
            f"'{_shortened(self.text)}' has no value while it is traced, so if, and, or, not and chained comparisons "
            "cannot ask it; use sirdar.expressions.where(condition, x, y), &, | and ~."
        )

    def __float__(self):
        raise TypeError(
            f"'{_shortened(self.text)}' has no value while it is traced; use the functions of sirdar.expressions, "
            "numpy or torch instead of those of math."
        )

    __int__ = __float__

    def __index__(self):
        raise TypeError(
            f"'{_shortened(self.text)}' has no value while it is traced; only arrays that the function reaches by a "
            "name of its own, or that tensors={...} names, can be read there."
        )

    def __array__(self, *_, **__):
        self.__index__()

    def __iter__(self):
        raise TypeError(f"'{_shortened(self.text)}' is one value; it cannot be taken apart.")

    def __getattr__(self, name):
        if name.startswith("__"):  # what NumPy, torch and copy ask every object for
            raise AttributeError(name)
        raise NotInLanguage(
            f"'{_shortened(self.text)}' is traced and has no .{name}; use the functions of sirdar.expressions, as in "
            "exp(score)."
        )

    # --- functions of NumPy and torch ---

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return _foreign(ufunc.__name__ if method == "__call__" else None, inputs, options)

    def __array_function__(self, function, types, inputs, options):
        return _foreign(function.__name__, inputs, options)

    @classmethod
    def __torch_function__(cls, function, types, inputs=(), options=None):
        name = getattr(function, "__name__", None)
        if name == "__getitem__":
            from . import _trace

            return _trace.element_of(inputs[0], inputs[1])
        return _foreign(name, inputs, options)


def _refusal(what):
    def refuse(self, *_):
        raise TypeError(
            f"{what} of the traced '{_shortened(self.text)}' is not in the language; sirdar.expressions lists it."
        )

    return refuse


for _names, _what in (
    ("rpow", "a power"), ("matmul rmatmul", "@"), ("lshift rlshift", "<<"), ("rshift rrshift", ">>"),
    ("divmod rdivmod", "divmod"), ("round trunc", "rounding other than floor"), ("len", "a length"),
    ("getitem", "an element"), ("hash", "a hash"),
):  # fmt: skip
    for _name in _names.split():
        setattr(Value, f"__{_name}__", _refusal(_what))


def value_of(x):
    """A Python or NumPy number, or a Value, as a Value."""
    if isinstance(x, Value):
        return x
    if hasattr(x, "_whole"):  # an array of one number, as _trace stands in for it
        return x._whole()
    if isinstance(x, bool) or type(x).__name__ in ("bool_", "bool"):
        return Value("true" if x else "false", BOOL)
    try:
        number = operator.index(x)
    except TypeError:
        return _fp32(x)
    if not -(2**31) < number < 2**31:
        raise ValueError(f"{_said(number)} is more than an int of 32 bits; use a float.")
    sign = "-" if number < 0 else ""
    return Value(f"{sign}{abs(number)}", INT, _UNARY if sign else _PRIMARY, not sign)


def _fp32(x):
    try:
        number = None if isinstance(x, (str, bytes)) or getattr(x, "shape", ()) else float(x)
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise TypeError(
            f"{type(x).__name__} cannot be used in an expression; use numbers, elements of arrays, and what "
            "sirdar.expressions has."
        )
    if math.isnan(number):
        raise ValueError("NaN cannot be written in an expression; use a comparison and where().")
    sign = "-" if math.copysign(1, number) < 0 else ""
    return Value(sign + repr(abs(number)), FP32, _UNARY if sign else _PRIMARY, not sign)


def _inside(value, precedence):
    """The text of an operand of an operator that binds so tightly."""
    return value.text if value.precedence >= precedence else f"({value.text})"


def _number(x):
    value = value_of(x)
    if value.type == BOOL:
        return Value(f"{_inside(value, _CHOICE + 1)} ? 1 : 0", INT, _CHOICE, True)
    return value


def _truth(x):
    value = value_of(x)
    if value.type != BOOL:
        raise TypeError(
            f"'{_shortened(value.text)}' is a number and &, | and ~ take conditions; compare it, as in x != 0."
        )
    return value


def _binary(symbol, x, y, type, is_never_negative=False):
    precedence = _PRECEDENCE[symbol]
    text = f"{_inside(x, precedence)} {symbol} {_inside(y, precedence + 1)}"
    return Value(text, type, precedence, is_never_negative)


def _arithmetic(symbol, x, y):
    x, y = _number(x), _number(y)
    is_int = x.type == y.type == INT
    both = is_int and x.is_never_negative and y.is_never_negative and symbol != "-"
    return _binary(symbol, x, y, INT if is_int else FP32, both)


def _divided(x, y):
    x, y = _number(x), _number(y)
    if x.type == y.type == INT:
        x = _binary("*", x, Value("1.0", FP32), FP32)
    return _binary("/", x, y, FP32)


def _floor_divided(x, y):
    x, y = _number(x), _number(y)
    if x.type == FP32 or y.type == FP32:
        return floor(_divided(x, y))
    if x.is_never_negative and y.is_never_negative:
        return _binary("/", x, y, INT, True)
    return _binary("/", _binary("-", x, _remainder(x, y), INT), y, INT)


def _remainder(x, y):
    x, y = _number(x), _number(y)
    if x.type == FP32 or y.type == FP32:
        return x - floor(x / y) * y
    if x.is_never_negative and y.is_never_negative:
        return _binary("%", x, y, INT, True)
    # The language gives the sign of x, Python that of y.
    return _binary("%", _binary("%", x, y, INT) + y, y, INT, y.is_never_negative)


def _compared(symbol, x, y):
    x, y = value_of(x), value_of(y)
    if BOOL in (x.type, y.type) and (x.type != y.type or symbol not in ("==", "!=")):
        x, y = _number(x), _number(y)
    return _binary(symbol, x, y, BOOL)


def _logic(symbol, x, y):
    return _binary(symbol, _truth(x), _truth(y), BOOL)


def _call(name, *inputs):
    values = [_number(x) for x in inputs]
    keeps_int = name in ("abs", "min", "max") and all(value.type == INT for value in values)
    text = f"{name}({', '.join(value.text for value in values)})"
    if name == "max":
        never = any(value.is_never_negative for value in values)
    else:
        never = name == "abs" or all(value.is_never_negative for value in values)
    return Value(text, INT if keeps_int else FP32, _PRIMARY, keeps_int and never)


def where(condition: Any, x: Any, y: Any) -> Value:
    """x where the condition holds, y elsewhere."""
    condition, x, y = _truth(condition), value_of(x), value_of(y)
    if x.type != y.type and BOOL in (x.type, y.type):
        x, y = _number(x), _number(y)
    type = x.type if x.type == y.type else FP32
    text = f"{_inside(condition, 1)} ? {_inside(x, 1)} : {_inside(y, _CHOICE)}"
    return Value(text, type, _CHOICE, x.is_never_negative and y.is_never_negative)


def minimum(x: Any, y: Any) -> Value:
    """The smaller; NaN if either is."""
    return _call("min", x, y)


def maximum(x: Any, y: Any) -> Value:
    """The larger; NaN if either is."""
    return _call("max", x, y)


def floor(x: Any) -> Value:
    """The largest whole number that is not above x, as fp32."""
    return _call("floor", x)


def exp(x: Any) -> Value:
    return _call("exp", x)


def exp2(x: Any) -> Value:
    return _call("exp2", x)


def log(x: Any) -> Value:
    """Natural logarithm."""
    return _call("log", x)


def tanh(x: Any) -> Value:
    return _call("tanh", x)


def sigmoid(x: Any) -> Value:
    """1 / (1 + exp(-x))"""
    return _call("sigmoid", x)


def sqrt(x: Any) -> Value:
    return _call("sqrt", x)


def clip(x: Any, low: Any, high: Any) -> Value:
    """x, moved into low..high; None is no bound."""
    value = x if low is None else maximum(x, low)
    return value if high is None else minimum(value, high)


def logical_and(x: Any, y: Any) -> Value:
    return _logic("&&", x, y)


def logical_or(x: Any, y: Any) -> Value:
    return _logic("||", x, y)


def logical_not(x: Any) -> Value:
    return ~_truth(x)


_FUNCTIONS = {
    "where": where, "minimum": minimum, "maximum": maximum, "min": minimum, "max": maximum,
    "fmin": None, "floor": floor, "exp": exp, "exp2": exp2, "log": log, "tanh": tanh,
    "sigmoid": sigmoid, "sqrt": sqrt, "clip": clip, "clamp": clip,
    "abs": abs, "absolute": abs, "negative": operator.neg, "neg": operator.neg,
    "logical_and": logical_and, "logical_or": logical_or, "logical_not": logical_not,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "invert": operator.invert, "bitwise_not": operator.invert,
    "add": operator.add, "subtract": operator.sub, "sub": operator.sub, "multiply": operator.mul,
    "mul": operator.mul, "divide": operator.truediv, "true_divide": operator.truediv, "div": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "mod": operator.mod,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne, "square": lambda x: x * x, "rsub": lambda x, y: y - x,
}  # fmt: skip


def _foreign(name, inputs, options):
    """A function of NumPy or torch that was called with a Value."""
    function = _FUNCTIONS.get((name or "").strip("_"))
    if function is None or options:
        raise TypeError(
            f"{name or 'this'} of a traced value is not in the language; sirdar.expressions lists it."
        )
    try:
        import inspect  # it takes longer to load than all of this package

        inspect.signature(function).bind(*inputs)
        # A number beside an array is an axis of it.
        fits = name not in ("min", "max") or not isinstance(inputs[-1], (int, float, tuple, list))
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(
            f"{name} of {len(inputs)} such arguments is not in the language; use the functions of "
            "sirdar.expressions, as in maximum(x, y)."
        )
    return function(*(value_of(x) for x in inputs))
