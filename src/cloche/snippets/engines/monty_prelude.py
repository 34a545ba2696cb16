"""What each Monty session is told before it sees a snippet, in Monty's own Python.

The built-in `map`, `filter`, `zip`, `enumerate` and `reversed` of Monty return lists. Classes of
the same names make them lazy again, so that they end, raise, print and run out as CPython's do.
Where a call surrounds one that takes all of it at once (`list(map(…))`), the snippet's text is led
to the list-making one, which is faster and cannot be told apart there.

Values leave the engine as JSON text that is made inside of it: Monty itself turns functions, cycles
and much else into strings on their way out, which would then pass for the code's own.

Names start with `__cloche_`, which a snippet may not use. Parameters with defaults keep the
built-ins as they were, whatever the snippet does to the names.
"""

from __future__ import annotations

from typing import Final

KEEP: Final = "__cloche_keep(("
"""Opens what becomes the value. Closed by `KEEP_END`."""
KEEP_END: Final = "))"
LISTED: Final = "__cloche_listed_"
"""In front of `map`, `filter`, `zip`, `enumerate` or `reversed`: the one that makes a list."""
UNTIL: Final = "__cloche_"
"""In front of `any`, `all` or `next`: the one that takes a function that makes a list."""
STOPS: Final = {
    "any": ("(", ") and __cloche_stop(0)"),
    "all": ("(", ") or __cloche_stop(0)"),
    "next": ("__cloche_stop((", "))"),
}
"""Around each of the list's items: it leaves the list where the built-in would stop taking."""
DEL: Final = "0; "
"""In place of `del`, and as long."""
DELETER: Final = "__cloche_deleter("
DELETER_END: Final = ")"
"""Around what an item is deleted of."""
CALL: Final = "__cloche_call"
"""The one name that is answered by the host."""
OWN_PREFIX: Final = "__cloche"

SETUP: Final = '''
import json as __cloche_json
from collections import Counter as __cloche_counter

__cloche_kept = []
__cloche_listed_map, __cloche_listed_filter, __cloche_listed_zip = map, filter, zip
__cloche_listed_enumerate, __cloche_listed_reversed = enumerate, reversed


def __cloche_keep(value, kept=__cloche_kept, len=len):
    kept.append(value)
    return len(kept)


class map:
    def __init__(self, function, *iterables, iter=iter, TypeError=TypeError):
        if not iterables:
            raise TypeError('map() must have at least two arguments.')
        self._function = function
        self._sources = [iter(iterable) for iterable in iterables]

    def __iter__(self):
        return self

    def __next__(self, next=next):
        return self._function(*[next(source) for source in self._sources])


class filter:
    def __init__(self, function, iterable, iter=iter):
        self._function = function
        self._source = iter(iterable)

    def __iter__(self):
        return self

    def __next__(self, next=next):
        while True:
            item = next(self._source)
            if item if self._function is None else self._function(item):
                return item


class zip:
    def __init__(self, *iterables, strict=False, iter=iter):
        self._sources = [iter(iterable) for iterable in iterables]
        self._strict = strict

    def __iter__(self):
        return self

    def __next__(self, next=next, tuple=tuple, StopIteration=StopIteration):
        if not self._sources:
            raise StopIteration
        if self._strict:
            return self._together()
        return tuple([next(source) for source in self._sources])

    def _together(self, next=next, tuple=tuple, len=len, ValueError=ValueError,
                  StopIteration=StopIteration, numbers=enumerate):
        end, items = [], []
        for source in self._sources:
            item = next(source, end)
            if item is not end:
                items.append(item)
            elif items:
                place = len(items) + 1
                raise ValueError(f'zip() argument {place} is shorter than {self._before(place)}')
            else:
                for place, other in numbers(self._sources[1:], 2):
                    if next(other, end) is not end:
                        before = self._before(place)
                        raise ValueError(f'zip() argument {place} is longer than {before}')
                raise StopIteration
        return tuple(items)

    def _before(self, place):
        return 'argument 1' if place == 2 else f'arguments 1-{place - 1}'


class enumerate:
    def __init__(self, iterable, start=0, iter=iter):
        self._source = iter(iterable)
        self._number = start

    def __iter__(self):
        return self

    def __next__(self, next=next):
        item = next(self._source)
        number = self._number
        self._number = number + 1
        return (number, item)


class reversed:
    def __init__(self, sequence, whole=reversed, iter=iter, list=list, isinstance=isinstance,
                 len=len):
        live = isinstance(sequence, list)
        self._sequence = sequence if live else None
        self._place = len(sequence) if live else 0
        self._source = None if live else iter(whole(sequence))

    def __iter__(self):
        return self

    def __next__(self, next=next, len=len, StopIteration=StopIteration):
        if self._sequence is None:
            return next(self._source)
        self._place = self._place - 1
        if not 0 <= self._place < len(self._sequence):
            self._place = 0
            raise StopIteration
        return self._sequence[self._place]


class __cloche_deleter:
    def __init__(self, target):
        self._target = target

    def __getitem__(self, key, isinstance=isinstance, dict=dict, list=list, int=int, len=len,
                    slice=slice, Counter=__cloche_counter, type=type, str=str, range=range,
                    tuple=tuple, set=set, frozenset=frozenset, bytes=bytes, float=float,
                    IndexError=IndexError, TypeError=TypeError,
                    NotImplementedError=NotImplementedError):
        target = self._target
        if isinstance(target, Counter):
            target.pop(key, None)
        elif isinstance(target, dict):
            target.pop(key)
        elif isinstance(target, list):
            if isinstance(key, slice):
                target[key] = []
            elif not isinstance(key, int):
                kind = type(key).__name__
                raise TypeError(f'list indices must be integers or slices, not {kind}')
            elif not -len(target) <= key < len(target):
                raise IndexError('list assignment index out of range')
            else:
                target.pop(key)
        elif target is None or isinstance(target, (str, range, tuple, set, frozenset, bytes, int,
                                                   float)):
            raise TypeError(f"'{type(target).__name__}' object doesn't support item deletion")
        else:
            raise NotImplementedError('del of such an item is not supported')


def round(number, ndigits=None, exact=round, isinstance=isinstance, float=float, int=int,
          NotImplementedError=NotImplementedError):
    """Monty's own is off by one in the last place where CPython's rounds the decimal form."""
    if ndigits is None or not isinstance(number, float):
        return exact(number) if ndigits is None else exact(number, ndigits)
    if not isinstance(ndigits, int) or number - number != 0:
        return exact(number, ndigits)
    if ndigits < 0:
        raise NotImplementedError('round of a float to tens is not supported')
    return float(f'{number:.{ndigits}f}') if ndigits < 330 else number


__cloche_stops = []


def __cloche_stop(value, stops=__cloche_stops, StopIteration=StopIteration):
    stops[-1] = (value,)
    raise StopIteration


def __cloche_first(run, stops=__cloche_stops, StopIteration=StopIteration,
                   RuntimeError=RuntimeError):
    # Other errors are let through untouched, so that they keep their places. What they leave on
    # the stack is an empty entry, which serves whoever looks there next as well as its own.
    stops.append(None)
    try:
        run()
    except StopIteration:
        found = stops.pop()
        if found is None:
            raise RuntimeError('generator raised StopIteration')
        return found
    stops.pop()
    return None


def __cloche_any(run, first=__cloche_first):
    return first(run) is not None


def __cloche_all(run, first=__cloche_first):
    return first(run) is None


def __cloche_next(run, *default, first=__cloche_first, StopIteration=StopIteration):
    found = first(run) or default
    if not found:
        raise StopIteration
    return found[0]


def __cloche_walk(value, path, above, limit, problems, isinstance=isinstance, str=str, int=int,
                  float=float, list=list, tuple=tuple, dict=dict, type=type, len=len,
                  ValueError=ValueError, bool=bool, repr=repr, places=enumerate):
    """Copy a value into what json takes; the first of `problems` says why it cannot be done."""
    walk = __cloche_walk
    if problems or value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        try:
            str(value)
        except ValueError:
            problems.append(f'L{path}: the number has more than 4300 digits')
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if not isinstance(value, (list, tuple, dict)):
        kind = type(value).__name__.split('.')[-1]
        hint = ': await it' if kind in ('coroutine', 'Task', 'Future') else ''
        problems.append(f'F{path}: {kind} has no JSON form{hint}')
        return None
    for one in above:
        if one is value:
            problems.append(f'F{path}: the value holds itself')
            return None
    if len(above) >= limit:
        problems.append(f'Lthe value is nested deeper than {limit} levels')
        return None
    above.append(value)
    if isinstance(value, dict):
        copy = {}
        for key, inner in value.items():
            text = key
            if not isinstance(key, str):
                if key is None:
                    text = 'null'
                elif isinstance(key, bool):
                    text = 'true' if key else 'false'
                elif isinstance(key, int):
                    walk(key, path, above, limit, problems)
                    text = '' if problems else str(key)
                elif isinstance(key, float):
                    text = repr(key)
                    text = {'nan': 'NaN', 'inf': 'Infinity', '-inf': '-Infinity'}.get(text, text)
                else:
                    kind = type(key).__name__.split('.')[-1]
                    problems.append(f'F{path}: a key of type {kind} has no JSON form')
            if problems:
                return None
            copy[text] = walk(inner, f'{path}[{repr(key)[:100]}]', above, limit, problems)
    else:
        copy = [walk(inner, f'{path}[{i}]', above, limit, problems)
                for i, inner in places(value)]
    above.pop()
    return copy


def __cloche_json_text(value, path, depth_limit, dumps=__cloche_json.dumps, walk=__cloche_walk,
                       Exception=Exception):
    """A tag and a text: `=` and JSON, `F` what has no JSON form, `L` what is too large."""
    try:
        return '=' + dumps(value, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
    except Exception:
        problems = []
        plain = walk(value, path, [], depth_limit, problems)
        if problems:
            return problems[0]
        return '=' + dumps(plain, ensure_ascii=False, separators=(',', ':'))


def __cloche_value(token, size_limit, depth_limit, kept=__cloche_kept, text_of=__cloche_json_text,
                   len=len):
    text = text_of(kept[token - 1], 'value', depth_limit)
    if len(text) > size_limit + 1 and text[0] == '=':
        return f'Lthe value is larger than {size_limit} bytes'
    return text


__cloche_tools_type = type('tools', (), {})


def __cloche_tool(name, depth_limit, size_limit, text_of=__cloche_json_text, len=len, list=list,
                  TypeError=TypeError, ValueError=ValueError):
    async def call(*args, **kwargs):
        texts = []
        for value, path in ((list(args), 'args'), (kwargs, 'kwargs')):
            text = text_of(value, path, depth_limit)
            if text[0] == 'F':
                raise TypeError(text[1:])
            if text[0] == 'L':
                raise ValueError(f'{path}: {text[1:]}')
            if len(text) > size_limit + 1:
                raise ValueError(f'{path}: the value is larger than {size_limit} bytes')
            texts.append(text[1:])
        return await __cloche_call(name, texts[0], texts[1])
    return call


def __cloche_tools(names, depth_limit, size_limit, kind=__cloche_tools_type, tool=__cloche_tool,
                   setattr=setattr):
    made = kind()
    for name in names:
        setattr(made, name, tool(name, depth_limit, size_limit))
    return made
'''
