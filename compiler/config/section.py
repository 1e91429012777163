"""The base of the configuration's sections: validation that finds every problem, and says where each one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from ..errors import ConfigError, Finding, Findings, Loc, did_you_mean, one_of, show


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a configuration was written: for messages only.

    Attributes:
        source: the file; None when there is none.
        lines: the line of each place, from 1.
        data: what was read, before it was parsed.
    """

    source: str | None = None
    lines: Mapping[Loc, int] = field(default_factory=dict)
    data: Any = None

    def written(self, loc: Loc) -> Any:
        """What was written at ``loc``; None where nothing was."""
        value = self.data
        for part in loc:
            if isinstance(value, Mapping):
                value = value.get(part)
            elif isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value


class Section(BaseModel):
    """Part of the configuration. Constructing one raises `ConfigError`, which lists every problem."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=False)

    _shape: ClassVar[str] = "a mapping"

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(finding.problem({}) for finding in findings_of(error)) from None

    # pydantic would otherwise call it for nested sections too, and lose the places of their problems.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="wrap")
    @classmethod
    def _find_all(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate every field and every rule between fields, also when some of them fail."""
        if isinstance(data, cls):
            return data
        if data is None and not any(info.is_required() for info in cls.model_fields.values()):
            data = {}
        if not isinstance(data, Mapping):
            raise Findings(Finding((), show(data), cls._shape))
        names = list(cls.model_fields)
        known = {key: value for key, value in data.items() if key in cls.model_fields}
        findings = [
            Finding(
                (key if isinstance(key, (str, int)) else show(key),),
                f"the unknown key {show(key)}",
                one_of(names),
                did_you_mean(key, names) or cls._belongs_to(key),
            )
            for key in data
            if key not in known
        ]
        made: Self | None = None
        try:
            made = handler(known)
        except ValidationError as error:
            findings.extend(findings_of(error))
        findings.extend(cls._missing(known))
        if made is None or findings:
            raise Findings(*findings)
        return made

    @classmethod
    def _belongs_to(cls, _key: object) -> str:
        """A hint for a key that is known elsewhere."""
        return ""

    @classmethod
    def _missing(cls, _data: Mapping[str, object]) -> list[Finding]:
        """Fields that other fields require, from the raw values."""
        return []


def findings_of(error: ValidationError) -> list[Finding]:
    """Every problem that pydantic collected, each with its place."""
    found: list[Finding] = []
    for entry in error.errors(include_url=False):
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, Findings):
            found.extend(finding.under(entry["loc"]) for finding in cause.items)
        elif entry["type"] == "missing":
            found.append(Finding(entry["loc"], "nothing", "a value: the field is required"))
        else:
            found.append(Finding(entry["loc"], show(entry["input"]), entry["msg"]))
    return found
