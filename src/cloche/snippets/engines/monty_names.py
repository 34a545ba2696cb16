"""What Monty's Python has, by name, as measured against CPython (docs/python-subset.md).

Source: pydantic-monty 1.4.0; tests/unit/test_engine_monty_corpus.py runs both on the same snippets.
"""

from __future__ import annotations

import builtins
from typing import Final

BUILTINS: Final = frozenset(
    "ArithmeticError AssertionError AttributeError BaseException Ellipsis Exception False"
    " FileExistsError FileNotFoundError ImportError IndexError IsADirectoryError KeyError"
    " KeyboardInterrupt LookupError MemoryError ModuleNotFoundError NameError None"
    " NotADirectoryError NotImplemented NotImplementedError OSError OverflowError PermissionError"
    " RecursionError RuntimeError StopIteration SyntaxError TimeoutError True TypeError"
    " UnboundLocalError ValueError ZeroDivisionError"
    " abs all any bin bool bytes chr dict divmod enumerate filter float format frozenset getattr"
    " hasattr hash hex id int isinstance iter len list map max min next oct ord pow print range"
    " repr reversed round set setattr slice sorted str sum tuple type zip"
    " __name__ __debug__".split()
)
"""Built-in names that mean what they mean in CPython."""

KNOWN_BUILTINS: Final = frozenset(dir(builtins)) | frozenset(
    "exit quit help license credits copyright __annotations__ __file__ __builtins__ __cached__"
    " __path__ __dict__".split()
)
"""Names that CPython has without an import: those that are not in `BUILTINS` are refused."""

MODULES: Final[dict[str, frozenset[str]]] = {
    name: frozenset(attributes.split())
    for name, attributes in {
        "__future__": "annotations division generator_stop print_function unicode_literals",
        "asyncio": "gather run sleep",
        "base64": (
            "a85decode a85encode b16decode b16encode b32decode b32encode b64decode b64encode"
            " b85decode b85encode standard_b64decode standard_b64encode urlsafe_b64decode"
            " urlsafe_b64encode"
        ),
        "binascii": "Error a2b_base64 a2b_hex b2a_base64 b2a_hex crc32 hexlify unhexlify",
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "collections": "Counter defaultdict deque namedtuple",
        "copy": "copy deepcopy",
        "dataclasses": "FrozenInstanceError dataclass field is_dataclass",
        "datetime": "date datetime time timedelta timezone",
        "decimal": (
            "Decimal DivisionByZero InvalidOperation ROUND_CEILING ROUND_DOWN ROUND_FLOOR"
            " ROUND_HALF_DOWN ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP ROUND_05UP getcontext"
        ),
        "functools": "cache lru_cache partial reduce",
        "hashlib": (
            "blake2b blake2s md5 new pbkdf2_hmac sha1 sha224 sha256 sha384 sha512 sha3_224"
            " sha3_256 sha3_384 sha3_512 shake_128 shake_256"
        ),
        "itertools": (
            "accumulate chain combinations combinations_with_replacement compress count cycle"
            " dropwhile filterfalse groupby islice pairwise permutations product repeat starmap"
            " takewhile tee zip_longest"
        ),
        "json": "JSONDecodeError dumps loads",
        "math": (
            "acos acosh asin asinh atan atan2 ceil comb copysign cos cosh degrees dist"
            " e exp exp2 expm1 fabs factorial floor fmod frexp fsum gcd hypot inf"
            " isclose isfinite isinf isnan isqrt lcm ldexp log log10 log1p log2 modf nan"
            " nextafter perm pi pow prod radians remainder sin sinh sqrt tan tanh tau trunc ulp"
        ),
        "random": (
            "Random betavariate choice choices expovariate gammavariate gauss getrandbits"
            " lognormvariate normalvariate paretovariate randbytes randint random randrange sample"
            " seed shuffle triangular uniform vonmisesvariate weibullvariate"
        ),
        "re": (
            "DOTALL I IGNORECASE M MULTILINE Match NOFLAG Pattern S compile error escape"
            " findall finditer fullmatch match search split sub"
        ),
        "sys": "byteorder maxsize maxunicode stderr stdout",
        "time": (
            "monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns"
            " sleep time time_ns"
        ),
        "typing": (
            "Annotated Any Callable ClassVar Dict Final FrozenSet Generator Generic Iterable"
            " Iterator List Literal Mapping Never NoReturn Optional Protocol Self Sequence Set"
            " TYPE_CHECKING Tuple Type TypeVar Union"
        ),
        "unicodedata": "category combining is_normalized lookup name normalize",
    }.items()
}
"""Modules that can be imported, and what of them is there."""

CLASS_METHODS: Final = frozenset(
    "__init__ __repr__ __str__ __eq__ __hash__ __iter__ __next__ __contains__ __enter__ __exit__"
    " __post_init__ __getitem__ __setitem__ __call__ __index__ __int__ __float__"
    " __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__"
    " __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __matmul__ __rmatmul__ __and__ __rand__"
    " __or__ __ror__ __xor__ __rxor__ __lshift__ __rshift__ __rlshift__ __rrshift__ __neg__"
    " __pos__ __invert__ __abs__".split()
)
"""Special methods that Monty calls where CPython does."""

MISSING_ATTRIBUTES: Final = frozenset(
    "format_map maketrans translate as_integer_ratio bit_count bit_length conjugate denominator"
    " from_bytes imag numerator real to_bytes is_integer difference_update"
    " intersection_update symmetric_difference_update indices"
    " add_note with_traceback"
    " gi_frame gi_running cr_frame cr_await"
    " fold fromordinal fromtimestamp utcfromtimestamp utcnow fromisocalendar isocalendar"
    " timetuple utctimetuple toordinal ctime"
    " lastindex lastgroup expand pos endpos regs subn groupindex scanner"
    " cache_parameters".split()
)
"""Attributes that built-in objects have in CPython and not here. Refused by name, unless the
snippet makes an attribute of that name itself."""

VALUE_METHODS: Final = frozenset(
    name
    for kind in (str, bytes, int, float, list, dict, set, frozenset, tuple, range)
    for name in dir(kind)
    if not name.startswith("_")
) | frozenset("appendleft popleft extendleft rotate most_common elements subtract".split())
"""Methods of built-in objects: Monty can call them and cannot hand them on."""

CONSUMERS: Final = frozenset("list tuple set frozenset dict sorted sum min max".split())
"""Built-ins that take all of an iterable at once."""

STOPPERS: Final = frozenset({"any", "all", "next"})
"""Built-ins that take no more of an iterable than they need."""

LAZY: Final = frozenset({"map", "filter", "zip", "enumerate", "reversed"})
"""Built-ins that the prelude makes lazy."""

TYPES: Final = frozenset("str bytes int float list dict set frozenset tuple bool range".split())
"""Built-in types, whose methods can be written as their functions: `str.lower`."""

TYPE_FUNCTIONS: Final = frozenset({("dict", "fromkeys"), ("bytes", "fromhex")})
"""Functions of types that take no object of theirs."""
