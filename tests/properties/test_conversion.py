"""Every supported type round-trips through stored JSON; every wrong value is refused with a path."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.model.conversion import Converter
from treadle.model.errors import InvalidPayload, TreadleError
from treadle.model.values import decode, encode

T = TypeVar("T")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
NUMBER = st.integers(-(2**53), 2**53)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Item:
    name: str
    price: float
    tags: frozenset[str] = frozenset()


class Point(NamedTuple):
    x: int
    y: int = 0


class Note(TypedDict, total=False):
    text: str
    due: date


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square", rename="camel"):
    side_length: int


class Parcel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    weight: int = pydantic.Field(alias="parcelWeight")
    at: datetime
    items: list[Item] = []


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


MOMENTS = st.datetimes(timezones=st.just(UTC))
ITEMS = st.builds(Item, TEXT, st.floats(allow_nan=False, allow_infinity=False), st.frozensets(TEXT, max_size=2))
TREES = st.recursive(st.builds(Tree, NUMBER), lambda inner: st.builds(Tree, NUMBER, st.lists(inner, max_size=2)), max_leaves=4)
PARCELS = st.builds(lambda w, at, items: Parcel(parcelWeight=w, at=at, items=items), NUMBER, MOMENTS, st.lists(ITEMS, max_size=2))

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXT),
    (bytes, st.binary(max_size=9)),
    (datetime, MOMENTS | st.datetimes()),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    (Path, st.just(Path("/a/ü.txt")) | st.just(Path("b/c"))),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Item, ITEMS),
    (Point, st.builds(Point, NUMBER, NUMBER)),
    (Note, st.fixed_dictionaries({}, optional={"text": TEXT, "due": st.dates()})),
    (Circle | Square, st.builds(Circle, st.floats(0, 9)) | st.builds(Square, NUMBER)),
    (Parcel, PARCELS),
    (Box[Item], st.builds(Box, ITEMS)),
    (Tree, TREES),
    (list[Parcel], st.lists(PARCELS, max_size=2)),
    (tuple[int, str, Color], st.tuples(NUMBER, TEXT, st.sampled_from(Color))),
    (tuple[date, ...], st.lists(st.dates(), max_size=3).map(tuple)),
    (set[UUID], st.sets(st.uuids(), max_size=3)),
    (dict[str, list[Item]], st.dictionaries(TEXT, st.lists(ITEMS, max_size=2), max_size=2)),
    (dict[UUID, Decimal], st.dictionaries(st.uuids(), st.decimals(allow_nan=False, allow_infinity=False, places=2), max_size=2)),
    (dict[int, Path], st.dictionaries(NUMBER, st.just(Path("x")), max_size=2)),
    (datetime | None, st.none() | MOMENTS),
    (Path | None, st.none() | st.just(Path("x"))),
    (int | str | list[int] | None, st.none() | NUMBER | TEXT | st.lists(NUMBER, max_size=2)),
    (Item | int, ITEMS | NUMBER),
]
CONVERTERS = [Converter(annotation) for annotation, _ in TYPES]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("index", range(len(TYPES)), ids=[str(annotation) for annotation, _ in TYPES])
def test_every_type_round_trips_through_stored_json(index: int, data: st.DataObject) -> None:
    value = data.draw(TYPES[index][1])
    stored = encode(CONVERTERS[index].dump(value))
    loaded = CONVERTERS[index].load(decode(stored))
    assert loaded == value
    assert type(loaded) is type(value)
    json.loads(stored)
    again = decode(encode(CONVERTERS[index].dump(loaded)))
    assert CONVERTERS[index].load(again) == value, "a second crash changes nothing"


WRONG: list[tuple[Any, Any, str]] = [
    (int, "1", "$"),
    (int, True, "$"),
    (int, 1.5, "$"),
    (str, 1, "$"),
    (str, b"x", "$"),
    (str, UUID(int=1), "$"),
    (float, "1", "$"),
    (bytes, "x", "$"),
    (datetime, "2026-01-01T00:00:00Z", "$"),
    (date, 5, "$"),
    (timedelta, "x", "$"),
    (UUID, "x", "$"),
    (Decimal, "x", "$"),
    (Path, 5, "$"),
    (Color, "green", "$"),
    (Item, {"name": "x"}, "$.price"),
    (Item, Item("x", None), "$.price"),  # type: ignore[arg-type]
    (list[Item], [Item("x", 1), Item("y", "z")], "$[1].price"),  # type: ignore[arg-type]
    (dict[str, list[Item]], {"a": [], "b": [Item("x", 1), Item(7, 1)]}, "$.b[1].name"),  # type: ignore[arg-type]
    (Box[Item], Box(Box(1)), "$.content.name"),
    (Tree, Tree(1, [Tree(2, [Tree("x")])]), "$.children[0].children[0].value"),  # type: ignore[arg-type]
    (Point, Point("a"), "$[0]"),  # type: ignore[arg-type]
    (Note, {"due": "soon"}, "$.due"),
    (Circle | Square, Square("x"), "$.sideLength"),  # type: ignore[arg-type]
    (Parcel, Parcel.model_construct(weight="x", at=datetime(2026, 1, 1, tzinfo=UTC)), "$.parcelWeight"),  # type: ignore[arg-type]
    (list[Parcel], [{"parcelWeight": 1, "at": "2026-01-01T00:00:00Z", "items": [{"name": "x"}]}], "$[0].items[0].price"),
    (tuple[int, str], (1, 2), "$[1]"),
    (set[int], {1, "x"}, "$["),
    (dict[int, int], {1: "x"}, "$.1"),
    (Path | None, 5, "$"),
    (object, object(), "$"),
    (int, object(), "$"),
    (list[int], 1 + 2j, "$"),
]


@pytest.mark.parametrize(("annotation", "value", "path"), WRONG, ids=[f"{one}-{index}" for index, (one, _, _) in enumerate(WRONG)])
def test_a_wrong_value_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(TreadleError) as raised:
        (Converter(annotation) if annotation is not object else Converter(Any)).dump(value)
    assert isinstance(raised.value, InvalidPayload)
    assert str(raised.value).startswith(path), str(raised.value)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_json_is_loaded_as_the_type_or_refused_with_a_path(data: st.DataObject) -> None:
    leaves = st.none() | st.booleans() | NUMBER | TEXT | st.floats(allow_nan=False, allow_infinity=False)
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
    )
    converter = data.draw(st.sampled_from(CONVERTERS))
    try:
        loaded = converter.load(data.draw(values))
    except InvalidPayload as error:
        assert str(error).startswith("$")  # noqa: PT017
    else:
        assert converter.load(decode(encode(converter.dump(loaded)))) == loaded


class Nulled(pydantic.BaseModel):
    x: Any = None
    number: float | None = None
    inner: list[float | None] = []


class Constant(Nulled):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")


class Spelled(Nulled):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")


class Hexed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes


class Written(pydantic.BaseModel):
    x: Any

    @pydantic.field_serializer("x")
    def write(self, x: Any) -> Any:
        return {"value": x}

    @pydantic.field_validator("x", mode="before")
    @classmethod
    def read(cls, x: Any) -> Any:
        return x["value"] if isinstance(x, dict) else x


class Number(pydantic.RootModel[float | None]):
    pass


@dataclass
class Loose:
    x: Any = None
    number: float | None = None


class LooseStruct(msgspec.Struct):
    x: Any = None
    number: float | None = None


FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
ODD = FLOATS | st.sampled_from(["\ud800", "a\0", 2**63, 2**64, -(2**70), 10**400, "NaN", "Infinity", None])
MODELS = [
    st.builds(model, x=ODD, number=FLOATS | st.none(), inner=st.lists(FLOATS, max_size=2)) for model in (Nulled, Constant, Spelled)
]
NASTY: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *zip((Nulled, Constant, Spelled), MODELS, strict=True),
    (list[Constant], st.lists(MODELS[1], max_size=2)),
    (dict[str, Nulled], st.dictionaries(st.sampled_from(["a", "\ud800", "\0"]), MODELS[0], max_size=2)),
    (Box[Spelled], st.builds(Box, MODELS[2])),
    (Constant | None, MODELS[1]),
    (Hexed, st.builds(Hexed, data=st.binary(max_size=3))),
    (Written, st.builds(Written, x=ODD)),
    (Number, st.builds(Number, FLOATS)),
    (Loose, st.builds(Loose, ODD, FLOATS)),
    (LooseStruct, st.builds(LooseStruct, ODD, FLOATS)),
    (float | None, FLOATS),
    (list[float | None], st.lists(FLOATS, max_size=2)),
    (Any, ODD),
]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("index", range(len(NASTY)), ids=[str(annotation) for annotation, _ in NASTY])
def test_a_value_that_json_does_not_have_is_refused_or_kept_but_never_changed(index: int, data: st.DataObject) -> None:
    annotation, values = NASTY[index]
    converter, value = Converter(annotation), data.draw(values)
    for write in (converter.dump, converter.find_text):
        try:
            if (written := write(value)) is None and write == converter.find_text:
                continue
            stored = encode(written)
        except InvalidPayload:
            continue
        assert json.loads(stored, parse_constant=pytest.fail) == decode(stored)
        loaded = converter.load(decode(stored))
        assert loaded == value or repr(loaded) == repr(value)


class Plain(pydantic.BaseModel):
    """A model whose fields are numbers, text, times and lists of them."""

    flag: bool
    day: date
    at: datetime
    price: Decimal
    ratio: float
    count: int = pydantic.Field(ge=0, default=0)
    name: str = pydantic.Field(max_length=5, default="")
    id: UUID | None = None
    tags: set[str] = pydantic.Field(max_length=2, default=set())
    rows: list[list[int]] = []


class Strict(Plain):
    model_config = pydantic.ConfigDict(frozen=True)


class Constrained(Plain):
    model_config = pydantic.ConfigDict(allow_inf_nan=False)


class Validated(Plain):
    @pydantic.field_validator("name")
    @classmethod
    def refuse(cls, name: str) -> str:
        if name == "x":
            raise ValueError("x is taken")
        return name


ANYTHING = st.one_of(
    *(st.booleans(), st.dates(), st.datetimes(timezones=st.none() | st.timezones()), st.decimals(), FLOATS, st.integers(), TEXT),
    *(st.uuids(), st.none(), st.binary(max_size=2), st.just(Color.RED), st.just(Level.LOW), st.timedeltas(), st.times()),
    *(st.just(10**5000), st.just("\ud800"), st.just("x"), st.lists(TEXT, max_size=3), st.sets(TEXT, max_size=3)),
    st.lists(st.lists(st.integers() | TEXT, max_size=2), max_size=2),
)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.none() | st.timezones()),
    "price": st.decimals(),
    "ratio": FLOATS,
    "count": st.integers(-1),
    "name": TEXT | st.just("x"),
    "id": st.none() | st.uuids(),
    "tags": st.sets(TEXT, max_size=3),
    "rows": st.lists(st.lists(st.integers(), max_size=2), max_size=2),
}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("model", [Plain, Strict, Constrained, Validated])
def test_a_model_changed_after_its_validation_is_stored_only_if_it_can_be_read(model: Any, data: st.DataObject) -> None:
    fields = {name: data.draw(st.one_of(*[fitting] * 9, ANYTHING)) for name, fitting in FITTING.items()}
    for name in data.draw(st.sets(st.sampled_from(list(fields)), max_size=1)):
        del fields[name]  # missing, or its default
    value = model.model_construct(**fields)
    written = Converter(model).find_text(value)
    if written is not None:
        loaded = model.model_validate_json(written)
        assert loaded == model.model_validate(value.__dict__) or repr(loaded) == repr(value)


@pytest.mark.parametrize(
    "change",
    [{"count": -1}, {"name": "too long"}, {"tags": {1}}, {"at": "soon"}, {"flag": None}, {"rows": [["x"]]}, {"ratio": math.nan}],
    ids=str,
)
def test_a_wrong_value_in_a_plain_model_is_refused_with_its_path(change: dict[str, Any]) -> None:
    value = Plain(flag=True, day=date(2027, 1, 1), at=datetime(2027, 1, 1, tzinfo=UTC), price=Decimal("1.50"), ratio=0.5)
    converter = Converter(Plain)
    assert converter.find_text(value) is not None
    wrong = value.model_copy(update=change)
    assert converter.find_text(wrong) is None
    with pytest.raises(InvalidPayload, match=rf"^\$(\.{next(iter(change))}|: )"):
        converter.dump(wrong)
