"""Manifests checked strictly against the published schemas: of Kubernetes, and of the CRDs of others.

A CRD's schema is what the API server prunes and validates by: a field that it does not name is refused here. Its rules
in CEL (``x-kubernetes-validations``) are not evaluated.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data" / "kubernetes"
VERSION = "1.37"
OPEN = "x-kubernetes-preserve-unknown-fields"


def check(manifest: Mapping[str, Any]) -> None:
    """Raise an error unless the manifest is valid, with no field that its schema does not have."""
    if (validator := custom_resources().get((manifest["apiVersion"], manifest["kind"]))) is not None:
        validator.validate(manifest)
    else:
        kubernetes_validate.validate(dict(manifest), VERSION, strict=True)


@cache
def custom_resources() -> dict[tuple[str, str], jsonschema.Draft7Validator]:
    """Return a validator for each version and kind of the CRDs."""
    found = {}
    for path in sorted(DATA.glob("*.yaml.gz")):
        definition = yaml.safe_load(gzip.decompress(path.read_bytes()))["spec"]
        for version in definition["versions"]:
            schema = (version.get("schema") or definition["validation"])["openAPIV3Schema"]
            name = f"{definition['group']}/{version['name']}", definition["names"]["kind"]
            found[name] = jsonschema.Draft7Validator(_strict(schema))
    return found


def _strict(schema: Any) -> Any:
    """Return a schema of OpenAPI v3 as one of JSON Schema that takes no other fields than it names."""
    if isinstance(schema, list):
        return [_strict(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: {name: _strict(member) for name, member in value.items()} if key == "properties" else _strict(value)
        for key, value in schema.items()
        if key != "default"
    }
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in schema and not schema.get(OPEN) and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict
