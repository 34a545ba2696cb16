"""WebAssembly machines: one compiled module, of which each run gets a new instance.

An instance costs some 30 µs, because nothing is copied: its memory is mapped copy-on-write from an
image. It is as fresh as can be, by construction: memory, globals, table and WASI state all belong
to a store that is made for it and closed after it. What is shared between instances is machine
code, the image, and the functions here.

`wasmtime`'s own `Func.__call__` asks for the function's type each time (20 µs); the unchecked call
below it takes 1 µs. It is used for exports whose parameters are all `i32`, of a module that is
pinned by its digest.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import wasmtime
from wasmtime import _ffi as ffi
from wasmtime._func import maybe_raise_last_exn

if TYPE_CHECKING:
    from collections.abc import Callable

# Of native stack, for the deepest recursion that the code's own limit allows, several times over.
NATIVE_STACK_BYTES = 6 * 1024 * 1024
_PARAMETERS_LIMIT = 8
# Of their own, without the checks of each parameter that the shared ones have.
_call_unchecked = ffi.dll["wasmtime_func_call_unchecked"]
_call_unchecked.restype = ctypes.c_void_p
_TrapPointer = ctypes.POINTER(ffi.wasm_trap_t)
_NO_HOST = "nothing but a run may call the host"


class Imports(Protocol):
    """What an instance may ask of its run. Pointers and lengths are the instance's words."""

    def host_call(self, name: int, name_length: int, this: int, count: int, values: int) -> int:
        """Call a host function; also called for rejected promises (see `quickjs_image`)."""

    def host_module_normalize(
        self, base: int, base_length: int, name: int, name_length: int, length: int
    ) -> int:
        """Return where the full name of a module is; 0 to refuse."""

    def host_module_load(self, name: int, name_length: int, length: int) -> int:
        """Return where the source of a module is; 0 to refuse."""


def configure(*, optimise: bool = True) -> wasmtime.Engine:
    """Return a compiler and runtime with the settings of every machine here."""
    settings = wasmtime.Config()
    settings.cranelift_opt_level = "speed" if optimise else "none"
    ffi.wasmtime_config_async_stack_size_set(settings.ptr(), NATIVE_STACK_BYTES + 65536)
    settings.max_wasm_stack = NATIVE_STACK_BYTES
    settings.memory_may_move = False
    return wasmtime.Engine(settings)


class Machine:
    """A compiled module with its imports in place."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.engine = engine
        self.current: Imports | None = None
        self._module = module
        linker = self._linker = wasmtime.Linker(engine)
        linker.define_wasi()
        i32 = wasmtime.ValType.i32()

        def define(name: str, count: int, function: Callable[..., int]) -> None:
            linker.define_func("env", name, wasmtime.FuncType([i32] * count, [i32]), function)

        define("host_call", 5, lambda *given: self._run().host_call(*given))
        define("host_interrupt", 0, lambda: 0)  # deadlines are kept from outside
        define("host_module_normalize", 5, lambda *given: self._run().host_module_normalize(*given))
        define("host_module_load", 3, lambda *given: self._run().host_module_load(*given))
        self._linked = linker.instantiate_pre(module)

    def close(self) -> None:
        """Give everything back. Requires: no instance is open."""
        for part in (self._linked, self._linker, self._module, self.engine):
            part.close()

    def start(self) -> Instance:
        """Return a new instance. It sees a clock and randomness, and nothing else of WASI."""
        store = wasmtime.Store(self.engine)
        store.set_wasi(wasmtime.WasiConfig())
        return Instance(store, self._linked.instantiate(store))

    def _run(self) -> Imports:
        if self.current is None:
            raise RuntimeError(_NO_HOST)
        return self.current


class Instance:
    """One instance and its memory. Close it when it is not needed any more."""

    def __init__(self, store: wasmtime.Store, instance: wasmtime.Instance) -> None:
        self._store = store
        self._instance = instance
        self._context = store._context()
        self._functions: dict[str, Any] = {}
        self._exports: dict[str, Any] = {}  # what the functions are parts of
        self._values = (ffi.wasmtime_val_raw_t * _PARAMETERS_LIMIT)()
        memory = self._exports["memory"] = self._export(b"memory")
        self._memory = ctypes.byref(memory.of.memory)
        # It never moves, and never shrinks.
        self._base = ctypes.addressof(
            ffi.wasmtime_memory_data(self._context, self._memory).contents
        )
        self._size = self.size()

    def close(self) -> None:
        """Give everything back."""
        self._store.close()

    def limit_memory(self, size_bytes: int) -> None:
        """Let the memory grow to `size_bytes` at most: beyond it, allocations fail."""
        self._store.set_limits(memory_size=size_bytes)

    def call(self, name: str, *parameters: int) -> int:
        """Call an export whose parameters are all i32; return its i32, if any.

        Raises:
            wasmtime.Trap: The instance ran into a wall, and may not be called again.
        """
        function = self._functions.get(name)
        if function is None:
            item = self._exports[name] = self._export(name.encode())
            function = self._functions[name] = ctypes.byref(item.of.func)
        values = self._values
        for index, parameter in enumerate(parameters):
            values[index].i32 = parameter
        trap = _TrapPointer()  # calls may be nested: each has its own
        error = _call_unchecked(
            self._context, function, values, _PARAMETERS_LIMIT, ctypes.byref(trap)
        )
        if error:
            pointer = ctypes.cast(error, ctypes.POINTER(ffi.wasmtime_error_t))
            told = wasmtime.WasmtimeError._from_ptr(pointer)
            maybe_raise_last_exn()  # of a host function, which is why there is an error
            raise told
        if trap:
            stopped = wasmtime.Trap._from_ptr(trap)
            maybe_raise_last_exn()
            raise stopped
        return int(values[0].i32)

    def size(self) -> int:
        """Return the bytes of memory there are."""
        return int(ffi.wasmtime_memory_data_size(self._context, self._memory))

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes of memory.

        Raises:
            ValueError: They are not all inside of it.
        """
        return ctypes.string_at(self._address(start, length), length)

    def write(self, start: int, data: bytes) -> None:
        """Write into memory.

        Raises:
            ValueError: It does not fit.
        """
        ctypes.memmove(self._address(start, len(data)), data, len(data))

    def read_number(self, start: int) -> int:
        """Return an unsigned i32 in memory."""
        return int.from_bytes(self.read(start, 4), "little")

    def read_export(self, name: str) -> int:
        """Return the number that an exported global holds."""
        value = ffi.wasmtime_val_t()
        item = self._export(name.encode())
        ffi.wasmtime_global_get(self._context, ctypes.byref(item.of.global_), ctypes.byref(value))
        return int(value.of.i32)

    def _address(self, start: int, length: int) -> int:
        start &= 0xFFFF_FFFF  # an i32 that is a pointer
        if length < 0 or start + length > self._size:
            self._size = self.size()
            if length < 0 or start + length > self._size:
                raise ValueError("outside of the instance's memory")
        return self._base + start

    def _export(self, name: bytes) -> Any:
        item = ffi.wasmtime_extern_t()
        if not ffi.wasmtime_instance_export_get(
            self._context,
            ctypes.byref(self._instance._instance),
            name,
            len(name),
            ctypes.byref(item),
        ):
            raise KeyError(name)
        return item
