"""The description of the API as OpenAPI 3.1, and a small page of it."""

import html
import json
from typing import Any

from boxwright import __version__

_PICTURE = {"type": "string", "format": "binary"}


def describe_api(models: list[str]) -> dict[str, Any]:
    """Return the description of a server with these models."""
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    errors = {
        "400": {"description": "an option, a tensor or a form that is wrong", **error},
        "401": {"description": "the token is missing or wrong", **error},
        "413": {"description": "a body or a picture that is too large", **error},
        "415": {"description": "something else than a picture", **error},
        "422": {"description": "a picture that can't be read", **error},
        "429": {"description": "more requests than can be answered; see Retry-After", **error},
        "503": {"description": "no worker is ready", **error},
        "504": {"description": "no answer within the time limit", **error},
    }
    model_path = [_parameter("name", "path", {"type": "string", "enum": models}, "the model")]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Boxwright", "version": __version__, "description": "Object detection over HTTP."},
        "paths": {
            "/predict": {
                "post": {
                    "summary": "Find objects in one picture, or in each picture of a form",
                    "parameters": [
                        _parameter("conf", "query", _fraction(0.25), "lowest score"),
                        _parameter(
                            "nms", "query", _fraction(0.45), "overlap above which the lower-scored box is dropped"
                        ),
                        _parameter("classes", "query", {"type": "string"}, "only these classes: person,dog"),
                        _parameter("model", "query", {"type": "string", "enum": models}, "default: the first one"),
                    ],
                    "requestBody": {
                        "required": True,
                        "content": {
                            "image/*": {"schema": _PICTURE},
                            "multipart/form-data": {
                                "schema": {
                                    "type": "object",
                                    "properties": {"image": {"type": "array", "items": _PICTURE}},
                                }
                            },
                        },
                    },
                    "responses": {
                        "200": {
                            "description": "the objects; with Accept: image/jpeg, the picture with boxes drawn; for "
                            "several pictures, a line for each in their order",
                            "content": {
                                "application/json": {"schema": {"$ref": "#/components/schemas/Prediction"}},
                                "application/x-ndjson": {"schema": {"$ref": "#/components/schemas/Prediction"}},
                                "image/jpeg": {"schema": _PICTURE},
                            },
                        },
                        **errors,
                    },
                }
            },
            "/models": {"get": _simple("The models, their classes and input sizes")},
            "/admin/models": {
                "post": {
                    "summary": "Load the files of a model again and swap, if they pass their check",
                    "requestBody": {
                        "content": {
                            "application/json": {
                                "schema": {"type": "object", "properties": {"name": {"type": "string", "enum": models}}}
                            }
                        }
                    },
                    "responses": {"200": {"description": "the new version"}, **errors},
                }
            },
            "/healthz/live": {"get": _simple("Whether the process runs")},
            "/healthz/ready": {"get": _simple("Whether every model has a worker; 503 if not")},
            "/metrics": {"get": _simple("Metrics in Prometheus' text format")},
            "/v2": {"get": _simple("Open Inference Protocol: the server")},
            "/v2/health/live": {"get": _simple("Open Inference Protocol: whether it runs")},
            "/v2/health/ready": {"get": _simple("Open Inference Protocol: whether it is ready")},
            "/v2/models/{name}": {
                "get": {**_simple("Open Inference Protocol: inputs and outputs"), "parameters": model_path}
            },
            "/v2/models/{name}/ready": {
                "get": {**_simple("Open Inference Protocol: whether a model is ready"), "parameters": model_path}
            },
            "/v2/models/{name}/infer": {
                "post": {
                    "summary": "Open Inference Protocol: tensors in, boxes, scores, classes and counts out",
                    "parameters": model_path,
                    "responses": {"200": {"description": "the outputs"}, **errors},
                }
            },
        },
        "components": {
            "schemas": {
                "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
                "Detection": {
                    "type": "object",
                    "required": ["class", "class_id", "score", "box_xyxy"],
                    "properties": {
                        "class": {"type": "string"},
                        "class_id": {"type": "integer"},
                        "score": {"type": "number"},
                        "box_xyxy": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
                    },
                },
                "Prediction": {
                    "type": "object",
                    "required": ["model", "size_hw", "detections", "timings_ms"],
                    "properties": {
                        "source": {"type": "string", "description": "the file name, in a form"},
                        "model": {"type": "string"},
                        "size_hw": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
                        "detections": {"type": "array", "items": {"$ref": "#/components/schemas/Detection"}},
                        "timings_ms": {"type": "object", "additionalProperties": {"type": "number"}},
                    },
                },
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def describe_page(models: list[str]) -> str:
    """Return the description as a page without scripts."""
    api = describe_api(models)
    rows = []
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            options = ", ".join(
                f"<code>{html.escape(one['name'])}</code> {html.escape(one['description'])}"
                for one in operation.get("parameters", [])
            )
            rows.append(
                f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
                f"<td>{html.escape(operation['summary'])}{'<br>' + options if options else ''}</td></tr>"
            )
    schema = html.escape(json.dumps(api["components"]["schemas"]["Prediction"]["properties"], indent=1))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<meta name=color-scheme content='light dark'><title>Boxwright API</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td{padding:.4rem .8rem .4rem 0;vertical-align:top;border-top:1px solid #8884}"
        "pre{overflow:auto;background:#8882;padding:1rem}</style>"
        f"<h1>Boxwright {html.escape(__version__)}</h1><p>Models: {html.escape(', '.join(models))}. "
        "The whole description: <a href=openapi.json>openapi.json</a>.</p>"
        "<pre>curl --data-binary @street.jpg -H 'Content-Type: image/jpeg' SERVER/predict?conf=0.3</pre>"
        f"<table>{''.join(rows)}</table><h2>An answer</h2><pre>{schema}</pre></html>"
    )


def _parameter(name: str, where: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": text}


def _fraction(default: float) -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "maximum": 1, "default": default}


def _simple(text: str) -> dict[str, Any]:
    return {"summary": text, "responses": {"200": {"description": text}}}
