"""Create golden texts of idioms of Jinja, rendered by `jinja2` as `transformers` renders chat templates.

The environment is that of `_compile_jinja_template` in `transformers/utils/chat_template_utils.py`, so this script needs
only jinja2. With `--check` it compares the file with what the installed jinja2 renders. See README.md.
"""

import argparse
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

import jinja_idioms

# The version that wrote the goldens.
VERSION = "3.1.6"
TODAY = datetime.datetime(2024, 7, 6, 9, 5, 3)


class Generation(jinja2.ext.Extension):
    """The tag `generation`, which marks answers for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Dictionary:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, *args = args
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    extensions = [Generation, jinja2.ext.loopcontrols]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": TODAY.strftime,
        "dict": Dictionary(),
        "namespace": Namespace,
    }
    return environment


def render(environment, template):
    """Return the text, or the error."""
    variables = jinja_idioms.VARIABLES | {
        "messages": jinja_idioms.MESSAGES,
        "tools": jinja_idioms.TOOLS,
        "documents": None,
        "add_generation_prompt": True,
    }
    try:
        return {"text": environment.from_string(template).render(variables)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def goldens():
    peer = environment()
    header = {
        "peer": f"jinja2 {jinja2.__version__}",
        "today": TODAY.isoformat(),
        "messages": jinja_idioms.MESSAGES,
        "tools": jinja_idioms.TOOLS,
        "variables": jinja_idioms.VARIABLES,
    }
    records = [
        {"subject": subject, "template": template} | render(peer, template)
        for subject, template in jinja_idioms.idioms()
    ]
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    return f'{{"header": {json.dumps(header, ensure_ascii=False)},\n"records": [\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true", help="compare with the file instead")
    arguments = parser.parse_args()
    if jinja2.__version__ != VERSION:
        sys.exit(f"install jinja2=={VERSION}, which wrote the goldens")
    text = goldens()
    if not arguments.check:
        arguments.out.write_text(text, encoding="utf-8")
    elif arguments.out.read_text(encoding="utf-8") != text:
        sys.exit(f"{arguments.out} is not what the script writes: run it without --check")


if __name__ == "__main__":
    main()
