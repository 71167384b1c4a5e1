"""Signatures of user code: how the payload of a task becomes arguments, and the return value its result.

Parameters are bound by name: the payload is an object of the arguments, `{"order": {...}, "copies": 2}`. A parameter that is called
`payload`, or the only one if it has no annotation, takes the whole payload instead. A parameter named `ctx`, or annotated as a
context, receives the context, and is never part of the payload. Signatures that mean neither are refused at registration.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from treadle.model.conversion import Arguments, Converter, is_raw
from treadle.model.errors import InvalidInput, InvalidPayload, NonRetryable
from treadle.model.external import ExternalProductionHandle
from treadle.model.json_schema import ANY_OBJECT, Schema, schema_of
from treadle.model.outcomes import AwaitingApproval, Failed, Paused, Released, Retry, Succeeded, Waiting
from treadle.model.values import Json, decode, type_name


def unwrapped(code: Any) -> Any:
    """Return the plain function of a reference; everything else as it is."""
    return getattr(code, "__treadle_code__", code)


def importable(fn: Any) -> Any:
    """Return the object that the function's module has under its name: the function, or the reference that replaced it."""
    target: Any = sys.modules.get(getattr(fn, "__module__", None) or "")
    for part in getattr(fn, "__qualname__", "").split("."):
        target = getattr(target, part, None)
    return target if target is not None and unwrapped(target) is fn else fn


def is_async(call: object) -> bool:
    """Whether a call of the object returns a coroutine."""
    code = getattr(call, "__code__", None)  # faster for a plain function than `inspect`
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


Kind = Literal["raw", "handler", "function", "task"]
"""The code of a handler of the engine, of a handler (its result is an object), of a function (any value), or of a task."""

OUTCOMES = (Succeeded, Retry, Failed, Waiting, AwaitingApproval, Paused, Released, ExternalProductionHandle)
TRIGGERED = frozenset({"tick", "change"})
"""Fields that schedules and watchers add to a payload; code that does not declare them does not receive them."""
RESULT = "result"
"""The field that holds a result that is not an object."""

_EMPTY = inspect.Parameter.empty
_ALLOWED = "it must take (payload), (payload, ctx) or nothing"
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CONTEXTS = frozenset({"Context", "FunctionContext", "BlockingFunctionContext"})
_ABSENT: Any = object()


class Unresolved(Exception):
    """An annotation names something that cannot be found."""


class Signature(msgspec.Struct, frozen=True):
    """The arguments and the result of one handler or function."""

    name: str
    arguments: int
    """Payload style: the number of arguments that the code takes of (payload, ctx)."""
    payload: Converter | None = None
    """Payload style: the type of the payload; None for any JSON object."""
    names: tuple[str, ...] | None = None
    """Names of the parameters, except `ctx`, in the style of arguments; None in the style of a payload."""
    fields: Converter | None = None
    """The arguments as one type."""
    bound: inspect.Signature | None = None
    """The signature without `ctx`, for callers."""
    context: str | None = None
    """The name of the parameter for the context, in the style of arguments."""
    leading: tuple[str, ...] = ()
    """Positional-only parameters, including the context."""
    result: Converter | None = None
    """The type of the result; None for any JSON."""
    optional: bool = False
    """Whether an object result may also be None, which is stored as {}."""
    wrapped: bool = False
    """Whether the result is stored as `{"result": ...}`."""

    @property
    def is_typed(self) -> bool:
        """Whether anything has to be converted."""
        return self.names is not None or self.payload is not None or self.result is not None or self.wrapped

    def schema(self) -> Schema:
        """Return the JSON Schema of the payload."""
        converter = self.fields or self.payload
        return ANY_OBJECT if converter is None else schema_of(converter.annotation, self.bound)

    # callers

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        """Return the payload for a call with those arguments; raises `InvalidPayload`."""
        if self.fields is None or self.bound is None:
            return self._dump_payload(args, kwargs)
        try:
            arguments = self.bound.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidPayload(f"{self.name} cannot be called like this: {error}.{self._hint(kwargs)}") from None
        try:
            payload: dict[str, Json] = self.fields.dump(arguments)
        except InvalidPayload as error:
            raise InvalidPayload(f"An argument of {self.name} does not match its annotation: {error}") from None
        return payload

    def _dump_payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        if len(args) + len(kwargs) > 1 or kwargs.keys() - {"payload"}:
            raise InvalidPayload(f"{self.name} takes one payload.{self._hint(kwargs)}")
        argument = next(iter((*args, *kwargs.values())), None)
        if self.payload is not None:
            try:
                payload: dict[str, Json] = self.payload.dump(argument)
            except InvalidPayload as error:
                raise InvalidPayload(f"The payload of {self.name} does not match its annotation: {error}") from None
            return payload
        if argument is not None and not isinstance(argument, Mapping):
            raise InvalidPayload(f"The payload of {self.name} is a dict (a JSON object), not a {type_name(argument)}.")
        return dict(argument or {})

    def _hint(self, kwargs: Mapping[str, Any]) -> str:
        names = set(self.names or ("payload",))
        unknown = next((name for name in kwargs if name not in names), None)
        return "" if unknown is None else f" Options go before the arguments: {self.name}.with_options({unknown}=...)."

    def load_result(self, result: Json) -> Any:
        """Return the stored result as a value of its type."""
        if self.wrapped:
            result = result.get(RESULT) if isinstance(result, dict) else result
        elif self.optional and not result:
            return None
        try:
            return result if self.result is None else self.result.load(result)
        except InvalidPayload as error:
            raise InvalidPayload(f"The stored result of {self.name} does not match its annotation: {error}") from None

    # workers

    def load(self, payload: Json, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the code, from the payload or its text; raises `NonRetryable` if the payload does not match."""
        try:
            loaded = self._loaded(payload)
        except InvalidPayload as error:
            hint = ". A parameter called `payload` would take the whole payload" if self.names and len(self.names) == 1 else ""
            raise NonRetryable(f"The payload of {self.name} does not match its signature: {error}{hint}", error.code) from None
        if self.names is None:
            return (loaded, context)[: self.arguments], {}
        values = loaded
        if self.context is not None:
            values[self.context] = context
        if not self.leading:
            return (), values
        return tuple(values.pop(name) for name in self.leading if name in values), values

    def _loaded(self, payload: Json) -> Any:
        converter = self.fields or self.payload
        if isinstance(payload, str):
            if converter is not None and (instance := converter.find(payload)) is not None:
                return instance
            payload = decode(payload)
        if converter is None:
            return payload
        if self.names is None:
            return converter.load(payload)
        if TRIGGERED & payload.keys():
            payload = {key: value for key, value in payload.items() if key not in TRIGGERED or key in self.names}
        values = msgspec.structs.asdict(converter.load(payload))
        return {name: value for name, value in values.items() if value is not _ABSENT}

    def dump_result(self, returned: Any, *, as_text: bool = False) -> Any:
        """Return the result as JSON or its text, or an outcome as it is; raises `NonRetryable` for a value that does not match."""
        if as_text and self.result is not None and not self.wrapped and (text := self.result.find_text(returned)) is not None:
            return text
        if isinstance(returned, OUTCOMES):
            if type(returned) is not Succeeded or self.result is None:
                return returned
            return Succeeded(self.dump_result(returned.result))
        if self.optional and returned is None:
            return None
        if self.result is not None:
            try:
                returned = self.result.dump(returned)
            except InvalidPayload as error:
                message = f"The result of {self.name} does not match its annotation: {error}"
                raise NonRetryable(message, "invalid_result") from None
        return {RESULT: returned} if self.wrapped else returned


class Adapter:
    """Sync code as a function of (payload, ctx) that takes and returns JSON or its text. It is pickled by the name of the code."""

    def __init__(self, signature: Signature, fn: Callable[..., Any], kind: Kind) -> None:
        self.signature, self.fn, self.kind = signature, fn, kind
        self.__wrapped__ = fn

    def __call__(self, payload: Json, context: Any) -> Any:
        args, kwargs = self.signature.load(payload, context)
        return self.signature.dump_result(self.fn(*args, **kwargs), as_text=isinstance(payload, str))

    def __reduce__(self) -> tuple[Any, ...]:
        return _adapted, (self.signature.name, importable(self.fn), self.kind)


class AsyncAdapter(Adapter):
    """The same for async code."""

    async def __call__(self, payload: Json, context: Any) -> Any:
        args, kwargs = self.signature.load(payload, context)
        return self.signature.dump_result(await self.fn(*args, **kwargs), as_text=isinstance(payload, str))


def adapted(signature: Signature, fn: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    """Return the code itself if it takes and returns JSON, or an adapter for it."""
    if not signature.is_typed:
        return fn
    return (AsyncAdapter if is_async(fn) else Adapter)(signature, fn, kind)


def _adapted(name: str, code: Any, kind: Kind) -> Callable[..., Any]:
    fn = unwrapped(code)
    return adapted(signature_of(name, fn, kind), fn, kind)


def signature_of(name: str, fn: Callable[..., Any], kind: Kind = "handler") -> Signature:
    """Return the signature of the code; raises `InvalidInput` with the reason if it cannot work.

    Code of the kind "raw" ignores annotations; a "task" always has the style of arguments.
    """
    reader = _SignatureReader(name, fn, kind)
    shape = reader.parameters()
    return Signature(name, **shape, **reader.result(lenient=shape.get("names") is None))


def batch_signature_of(name: str, fn: Callable[..., Any]) -> tuple[Signature, int]:
    """Return the signature for one task of a batch handler, and the number of arguments that it takes of (payloads, contexts).

    The code takes and returns lists; `list[Item]` and `list[Result | Exception]` give the types for one task.
    """
    reader = _SignatureReader(name, fn, "handler")
    parameters = list(reader.signature.parameters.values())
    if not 1 <= len(parameters) <= 2 or any(parameter.kind not in _POSITIONAL for parameter in parameters):
        raise reader.refused("a batch handler takes (payloads) or (payloads, contexts), which are lists")
    payload, result = (
        _element(reader, annotation) for annotation in (parameters[0].annotation, reader.signature.return_annotation)
    )
    one = inspect.Parameter("payload", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=payload)
    reader.signature = inspect.Signature([one], return_annotation=result)
    return Signature(name, **reader.parameters(), **reader.result(lenient=True)), len(parameters)


def _element(reader: _SignatureReader, annotation: Any) -> Any:
    """Return the type of the elements of a list, without exceptions."""
    if annotation is _EMPTY:
        return annotation
    try:
        annotation = resolved(reader.fn, annotation)
    except Unresolved as error:
        raise reader.refused(f"the annotation of its list {error}") from None
    if annotation in (Any, object):
        return _EMPTY
    origin = get_origin(annotation) or annotation
    if not (isinstance(origin, type) and issubclass(origin, Sequence)) or issubclass(origin, str):
        raise reader.refused(f"a batch handler takes and returns lists, not {_shown(annotation)}")
    (element,) = get_args(annotation)[:1] or (_EMPTY,)
    if get_origin(element) in (Union, types.UnionType):
        parts = [part for part in get_args(element) if not (isinstance(part, type) and issubclass(part, BaseException))]
        element = functools.reduce(lambda left, right: Union[left, right], parts)  # noqa: UP007
    return element


class _SignatureReader:
    """Reads one signature."""

    def __init__(self, name: str, fn: Callable[..., Any], kind: Kind) -> None:
        self.name, self.fn, self.kind = name, fn, kind
        try:
            self.signature = inspect.signature(fn)
        except (ValueError, TypeError):
            raise self.refused("its parameters are unknown: wrap it in a function of (payload)") from None
        if kind == "raw":
            plain = [parameter.replace(annotation=_EMPTY) for parameter in self.signature.parameters.values()]
            self.signature = inspect.Signature(plain)

    def refused(self, reason: str) -> InvalidInput:
        code = getattr(inspect.unwrap(self.fn) if callable(self.fn) else self.fn, "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        kind = "handler" if self.kind == "raw" else self.kind
        return InvalidInput(f"The {kind} {self.name} cannot be registered: {reason}{where}.")

    # parameters

    def parameters(self) -> dict[str, Any]:
        parameters = list(self.signature.parameters.values())
        context = next((parameter for parameter in parameters if self._is_context(parameter)), None)
        rest = [parameter for parameter in parameters if parameter is not context]
        named = [parameter for parameter in rest if parameter.kind not in _STARRED]
        if self.kind == "task":
            whole = None
        elif context is None and any(parameter.kind is _STARRED[0] and parameter.annotation is _EMPTY for parameter in rest):
            return {"arguments": 2}  # a wrapper, which passes its arguments on
        elif not rest and context is None:
            return {"arguments": 0}
        else:
            whole = _whole_payload(named)
        if whole is not None:
            return self._payload_style(whole, named, context)
        if len(named) < len(rest):
            raise self.refused("*args and **kwargs have no names in the payload; name every parameter")
        if self.kind != "task" and any(one.annotation is _EMPTY for one in named or parameters):
            raise self.refused(f"{_ALLOWED}, or all its parameters need annotations, to be bound by name")
        return self._arguments_style(rest, context)

    def _is_context(self, parameter: inspect.Parameter) -> bool:
        if parameter.kind in _STARRED:
            return False
        annotation = parameter.annotation
        named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        return parameter.name == "ctx" or named.rpartition(".")[2] in _CONTEXTS

    def _payload_style(
        self, whole: inspect.Parameter, named: list[inspect.Parameter], context: inspect.Parameter | None
    ) -> dict[str, Any]:
        for parameter in named:
            if parameter is not whole and not _is_fixed(parameter):
                raise self.refused(
                    f"`payload` takes the whole payload, so that {parameter.name} would receive nothing: rename `payload` to bind "
                    "all parameters by name, call the context `ctx`, or pass the type of a dependency to engine.provide"
                )
        expected = [whole] if context is None else [whole, context]
        positional = [parameter for parameter in self.signature.parameters.values() if parameter.kind in _POSITIONAL]
        if positional[: len(expected)] != expected:
            raise self.refused(f"{_ALLOWED}; `ctx` comes after the payload")
        annotation, converter = whole.annotation, None
        try:
            annotation = Any if annotation is _EMPTY else resolved(self.fn, annotation)
        except Unresolved:
            annotation = Any  # as before annotations had a meaning
        if not is_raw(annotation):
            converter = self._converter(annotation, f"its parameter {whole.name}")
            if not converter.is_object:
                raise self.refused(f"the payload is a JSON object, so {whole.name} cannot be a {_shown(annotation)}")
        return {"arguments": len(expected), "payload": converter}

    def _arguments_style(self, rest: list[inspect.Parameter], context: inspect.Parameter | None) -> dict[str, Any]:
        fields: list[Any] = []
        for parameter in rest:
            annotation = Any if parameter.annotation is _EMPTY else self._resolved(parameter)
            if not is_raw(annotation):
                self._converter(annotation, f"its parameter {parameter.name}")
            elif annotation is object:
                annotation = Any
            absent = msgspec.field(default_factory=lambda: _ABSENT)
            fields.append((parameter.name, annotation) if parameter.default is _EMPTY else (parameter.name, annotation, absent))
        struct = msgspec.defstruct("Arguments", fields, bases=(Arguments,), forbid_unknown_fields=True, kw_only=True)
        parameters = self.signature.parameters.values()
        return {
            "arguments": 2,
            "names": tuple(parameter.name for parameter in rest),
            "fields": Converter(struct),
            "bound": self.signature.replace(parameters=rest, return_annotation=_EMPTY),
            "context": None if context is None else context.name,
            "leading": tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY),
        }

    # result

    def result(self, *, lenient: bool) -> dict[str, Any]:
        annotation = self.signature.return_annotation
        if annotation is not _EMPTY:
            try:
                annotation = resolved(self.fn, annotation)
            except Unresolved as error:
                if not lenient:
                    raise self.refused(f"its return type {error}") from None
                annotation = _EMPTY
        task = self.kind == "task"
        optional, annotation = _without_outcomes(annotation)
        if annotation is _EMPTY or annotation in (Any, object):
            return {"wrapped": task}
        if annotation is type(None):
            return {"wrapped": task, "optional": not task}
        if is_raw(annotation) and not optional:
            return {}
        if is_raw(annotation):
            return {"optional": True} if self.kind == "handler" else {"wrapped": task}
        whole = annotation if not optional else annotation | None
        converter = self._converter(whole, "its return type")
        if self.kind == "function":
            return {"result": converter}
        if not converter.is_object:
            if task:
                return {"result": converter, "wrapped": True}
            raise self.refused(
                f"it returns {_shown(annotation)}, and the result of a handler is a JSON object: return a dict, a dataclass or a "
                "model, or register it with `@engine.task`, whose result may be any value"
            )
        if task and optional:
            return {"result": converter, "wrapped": True}
        return {"result": converter, "optional": optional}

    def _resolved(self, parameter: inspect.Parameter) -> Any:
        try:
            return resolved(self.fn, parameter.annotation)
        except Unresolved as error:
            raise self.refused(f"the annotation of its parameter {parameter.name} {error}") from None

    def _converter(self, annotation: Any, what: str) -> Converter:
        try:
            return Converter(annotation)
        except Exception as error:
            raise self.refused(f"{what} has a type that cannot be stored as JSON, {_shown(annotation)}: {error}") from None


def _is_fixed(parameter: inspect.Parameter) -> bool:
    """Return whether it is not bound: a default without an annotation keeps a value of the code around the function."""
    return parameter.default is not _EMPTY and parameter.annotation is _EMPTY


def _whole_payload(named: list[inspect.Parameter]) -> inspect.Parameter | None:
    """Return the parameter that takes the whole payload: the one called `payload`, or the only one, if it has no annotation."""
    bound = [parameter for parameter in named if not _is_fixed(parameter)]
    if len(bound) == 1 and bound[0].annotation is _EMPTY:
        return bound[0]
    return next((parameter for parameter in named if parameter.name == "payload"), None)


def resolved(fn: Callable[..., Any], annotation: Any) -> Any:
    """Return the annotation with its names resolved where the code is defined; raises `Unresolved`."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation
    code: Any = inspect.unwrap(fn) if callable(fn) else fn
    code = code.func if isinstance(code, functools.partial) else code
    if not hasattr(code, "__globals__"):
        code = getattr(type(code), "__call__", code)  # noqa: B004
    names = dict(_callers_names())
    names |= {
        name: cell.cell_contents
        for name, cell in zip(
            getattr(getattr(code, "__code__", None), "co_freevars", ()), getattr(code, "__closure__", None) or (), strict=False
        )
        if cell != types.CellType()
    }
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, getattr(code, "__globals__", {}), names, include_extras=True)["it"]
    except Exception as error:
        text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
        reason = "import it outside `if TYPE_CHECKING`, or define it before the code"
        raise Unresolved(f"cannot be resolved: {text} ({error}); {reason}") from None


_known_results: WeakKeyDictionary[types.CodeType, tuple[Any, Converter | None]] = WeakKeyDictionary()


def result_converter(fn: Callable[..., Any]) -> Converter | None:
    """Return the converter for the annotated results of a step; None if they are any JSON, or their type is unknown."""
    code = getattr(fn, "__code__", None)
    if code is None:
        inner = fn.func if isinstance(fn, functools.partial) else getattr(fn, "__func__", None) or getattr(fn, "__wrapped__", None)
        return None if inner is None else result_converter(inner)
    annotation = fn.__annotations__.get("return")
    if annotation is None or annotation == "None":
        return None
    cached = _known_results.get(code)
    if cached is None or cached[0] is not annotation:
        cached = _known_results[code] = (annotation, _result_converter(fn, annotation))
    return cached[1]


def _result_converter(fn: Callable[..., Any], annotation: Any) -> Converter | None:
    try:
        type_ = resolved(fn, annotation)
        return None if is_raw(type_) or type_ is type(None) else Converter(type_)
    except Exception:  # a type of another library: its values are stored if they are JSON
        return None


def _callers_names() -> Mapping[str, Any]:
    """Return the local names of the code that registers, for types defined inside a function."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("treadle."):
        frame = frame.f_back
    return frame.f_locals


def _without_outcomes(annotation: Any) -> tuple[bool, Any]:
    """Return whether None is allowed, and the annotation without None and outcomes; the rest is the result's type."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return False, _EMPTY if isinstance(annotation, type) and issubclass(annotation, OUTCOMES) else annotation
    parts = [part for part in get_args(annotation) if not (isinstance(part, type) and issubclass(part, OUTCOMES))]
    alternatives = [part for part in parts if part is not type(None)]
    optional = len(alternatives) < len(parts)
    if not alternatives:
        return optional, type(None) if optional else _EMPTY
    return optional, functools.reduce(lambda left, right: Union[left, right], alternatives)  # noqa: UP007


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
