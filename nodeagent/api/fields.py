"""The types that request fields are made of: one strict charset, and integers that JSON can carry."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints
from pydantic_core import PydanticCustomError

LARGEST_INTEGER = 2**53 - 1  # what every JSON reader keeps exact
TEXT_PATTERN = r"^[A-Za-z0-9._:@/+-]{1,64}$"
FILTER_PATTERN = r"^[A-Za-z0-9._:@/+-]{0,64}$"  # an empty filter item means nothing
TYPE_PATTERN = r"^[A-Za-z0-9._:@/+*?\[\]() -]{0,64}$"  # product names have spaces, globs have stars
NOTE_PATTERN = r"^[A-Za-z0-9._:@/+,()#= -]{1,200}$"
CGROUP_PATTERN = r"^(/[A-Za-z0-9_:@+=-][A-Za-z0-9._:@+=-]{0,200}){1,12}$"  # no dot first: no way up
JOB_PATTERN = r"^([0-9]{1,19}|s[0-9A-Z]{13})$"  # Slurm's job id, or its SLUID
PID_PATTERN = r"^[1-9][0-9]{0,6}$"

T = TypeVar("T")


def _integral(value: object) -> object:
    """JSON Schema calls 5.0 an integer, so it is one; true and "5" are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("integer", "must be an integer")
    if isinstance(value, int):
        return value
    if not value.is_integer():
        raise PydanticCustomError("integer", "must be an integer")
    return int(value)


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number", "must be a number")
    return value


def _given(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "is null; leave the field out instead")
    return value


# A field that may be left out but not be null, which would mean the same in a second way.
Given = Annotated[T | None, BeforeValidator(_given)]
# The bounds stand before it: pydantic leaves what follows a validator out of the JSON Schema.
INTEGRAL = BeforeValidator(_integral)
Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER), INTEGRAL]
Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False), BeforeValidator(_number)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), StringConstraints(pattern=TEXT_PATTERN)]
Filter = Annotated[str, Strict(), StringConstraints(pattern=FILTER_PATTERN)]
TypeFilter = Annotated[str, Strict(), StringConstraints(pattern=TYPE_PATTERN)]
Note = Annotated[str, Strict(), StringConstraints(pattern=NOTE_PATTERN)]
CgroupPath = Annotated[str, Strict(), StringConstraints(pattern=CGROUP_PATTERN)]


def tidied(values: tuple[str, ...]) -> tuple[str, ...]:
    """Without what means nothing, and each once."""
    return tuple(dict.fromkeys(value for value in values if value))


Filters = Annotated[tuple[Filter, ...], Field(max_length=64), AfterValidator(tidied)]
TypeFilters = Annotated[tuple[TypeFilter, ...], Field(max_length=64), AfterValidator(tidied)]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def tidy(schema: dict[str, Any]) -> None:
    """Say what is meant: a field that may be left out is not nullable, and titles only repeat names."""
    schema.pop("title", None)
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)
        kinds = field.get("anyOf", [])
        if {"type": "null"} in kinds and field.get("default", 0) is None:
            rest = [kind for kind in kinds if kind != {"type": "null"}]
            field.pop("anyOf")
            field.pop("default")
            schema["properties"][name] = {**field, **(rest[0] if len(rest) == 1 else {"anyOf": rest})}
        elif "default" in field:
            field["default"] = _without_nulls(field["default"])


class Body(BaseModel):
    """A request object: a field that it does not know is an error, not a wish unheard."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=tidy)
