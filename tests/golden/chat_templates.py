#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_templates.json: what Python's jinja2, set up as transformers sets it, renders.

Run with jinja2 3.1 installed; NIBBLE_SHARED names the folder of models and tokenizers (default:
../shared beside the repository). The sources of the models' templates are not copied: a case names
the file. The other templates, one per feature of the language, were written for this test.
"""
import datetime
import json
import os
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

import chat_template_builtins

HERE = pathlib.Path(__file__).resolve().parent
SHARED = pathlib.Path(os.environ.get("NIBBLE_SHARED", HERE.parents[2] / "shared"))
NOW = datetime.datetime(2025, 3, 4, 5, 6, 7)


class RaisedByTemplate(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant says and prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise RaisedByTemplate(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def render(source, messages, add_generation_prompt, extra):
    """{"expected": text}, {"raised": message} or {"fails": why}; why is jinja2's, for the reader."""
    try:
        text = ENV.from_string(source).render(**{
            "tools": None, "documents": None, **extra, "messages": messages,
            "add_generation_prompt": add_generation_prompt})
        return {"expected": text}
    except RaisedByTemplate as e:
        return {"raised": str(e)}
    except Exception as e:  # any failure of the template
        return {"fails": f"{type(e).__name__}: {e}"}


# ---- the models' templates ----

MODEL_FILES = [
    "data/tokenizers/phi-3/tokenizer_config.json",
    "data/tokenizers/phi-3-mini/tokenizer_config.json",
    "data/tokenizers/qwen2.5/tokenizer_config.json",
    "data/tokenizers/qwen2.5/chat_template.jinja",
    "data/tokenizers/qwen3/tokenizer_config.json",
    "data/tokenizers/smollm3/chat_template.jinja",
    "samples/tiny/tokenizer_config.json",
]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather in a \"city\" <now>, it's 5 µm & 東京",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "enum": ["Paris", "Zürich"]},
            "days": {"type": "integer", "default": 3, "minimum": -1.5, "big": 1e22, "off": None}},
            "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
CALL = {"type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "ok": True, "x": 0.1}}}
TURNS = [message("user", "Hi"), message("assistant", "Hello! How can I help?"),
         message("user", "Tell me\n\na joke. "), message("assistant", "\n No.\n"),
         message("user", "  Please?  ")]
TOOL_TURNS = [message("system", "You are terse."), message("user", "Weather in Zürich?"),
              message("assistant", "", tool_calls=[CALL, {"name": "now", "arguments": "{}"}]),
              message("tool", "{\"t\": 21}"), message("tool", "12:00"),
              message("assistant", "It is 21 degrees."), message("user", "Thanks")]
CONVERSATIONS = {
    "user": [message("user", "What is 2+2?")],
    "system": [message("system", "You are a pirate."), message("user", "What is 2+2?")],
    "turns": TURNS,
    "system turns": [message("system", "Be kind.")] + TURNS,
    "late system": [message("user", "Hi"), message("system", "Now be rude."), message("user", "Hi")],
    "unicode": [message("user", "Grüße 東京 😀 e\u0301 \u200b\u00a0x"), message("assistant", "👩‍👩‍👧 ok")],
    "braces": [message("user", "{{ messages }} {% if x %} {# c #} {%- raw %} }} \\n \"q\" 'q' <|end|>")],
    "empty": [message("user", ""), message("assistant", ""), message("user", "")],
    "no messages": [],
    "assistant last": [message("user", "Say hi"), message("assistant", "hi")],
    "thinking": [message("user", "1?"), message("assistant", "<think>\nhm\n</think>\n\none"),
                 message("user", "2?"), message("assistant", "<think>\nhmm\n</think>\n\ntwo")],
    "reasoning": [message("user", "1?"), message("assistant", "one", reasoning_content="\nhm\n")],
    "tool turns": TOOL_TURNS,
    "flags": [message("system", "Rules: /no_think obey. "), message("user", "Hi")],
    "override": [message("system", "Only this. /system_override "), message("user", "Hi")],
    "long": [message("user" if i % 2 == 0 else "assistant", f"line {i}\n" * i) for i in range(21)],
    "no content": [{"role": "user"}],
    "null content": [message("user", None)],
    "parts": [message("user", [{"type": "text", "text": "Hi"}])],
    "no role": [{"content": "x"}],
}


def model_cases():
    for file in MODEL_FILES:
        path = (HERE.parents[1] if file.startswith("samples/") else SHARED) / file
        if file.endswith(".jinja"):
            source = path.read_text(encoding="utf-8")
        else:
            source = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
        tokens = {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
        for name, messages in CONVERSATIONS.items():
            for prompt in (False, True):
                yield file, source, f"{name} {prompt}", messages, prompt, tokens
        for name in ("user", "system", "tool turns", "turns", "override", "system turns", "unicode", "empty",
                     "no messages", "thinking", "reasoning"):
            yield file, source, f"{name} tools", CONVERSATIONS[name], True, {**tokens, "tools": TOOLS}
        for thinking in (False, True):
            extra = {**tokens, "enable_thinking": thinking, "python_tools": ["def f(x): 'it''s'\n"],
                     "xml_tools": TOOLS}
            for name in ("thinking", "reasoning", "tool turns", "system turns", "empty"):
                yield file, source, f"{name} thinking {thinking}", CONVERSATIONS[name], True, extra


# ---- one template per feature ----

DATA = {
    "s": "Hello, World", "u": "Zürich 東京 😀", "n": 7, "f": 2.5, "neg": -7, "z": None, "t": True,
    "l": [3, 1, 2], "ls": ["b", "a", "C"], "e": [], "d": {"b": 1, "a": "x", "items": [1, 2]},
    "rows": [{"k": "a", "v": 1, "in": {"x": 5}}, {"k": "b", "v": 0, "in": {"x": 6}}, {"k": "c"}],
    "nest": [[1, [2, "q'\"\n\t\\é\u200b\x7f"]], {"k": None, "f": 1e16}], "ws": " \t\n x y \u3000 ",
    "floats": [0.1, 1e-5, 1e15, 1e16, 123456789.125, -0.0, 3.0, 1.5e300], "big": 9007199254740993,
    "huge": 18446744073709551615, "huge_list": [123456789012345678901234, -9223372036854775809],
}
DEFAULTS_MACRO = ("{% macro m(a, b=2, c='z') %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}"
                  "{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m(b=5, a=6) }}{{ m() }}")
JSON_TYPE_MACRO = """{%- macro kind(spec) %}
  {%- if spec.type == 'array' %}
    {{- 'list[' + kind(spec['items']) + ']' }}
  {%- elif spec.type == 'object' %}
    {{- '{' }}
    {%- for k, v in spec.properties.items() %}
      {{- k + ': ' + kind(v) }}{{ ', ' if not loop.last }}
    {%- endfor %}
    {{- '}' }}
  {%- else %}
    {{- spec.type }}
  {%- endif %}
{%- endmacro %}
{{ kind({'type': 'array', 'items': {'type': 'object', 'properties':
   {'a': {'type': 'int'}, 'b': {'type': 'array', 'items': {'type': 'str'}}}}}) }}"""
FEATURES = [
    # output and literals
    "{{ s }}|{{ n }}|{{ f }}|{{ z }}|{{ t }}|{{ missing }}|{{ l }}|{{ d }}|{{ (1,) }}|{{ () }}|{{ 1, 2 }}",
    "{{ nest }}|{{ floats }}|{{ u }}|{{ [u, s] }}|{{ big }}",
    r"""{{ 'a\n\t\\\'\"\x41\u00e9\U0001F600\q\101' }}{{ "b'" }}{{ 'two' ' parts' "!" }}""",
    "{{ 1_000 }} {{ 1.5e3 }} {{ 2e-7 }} {{ 0 }} {{ 10.0 }} {{ true }} {{ True }} {{ None }} {{ none }}",
    "{{ [1, 'a', [true, none]] }} {{ {'a': 1, 'b': {'c': [2]}} }} {{ {} }} {{ [1, 2,] }} {{ {'a': 1,} }}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'a':{'b':2}}['a']['b']}}",
    # operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 2.0 }} {{ 3 - 5 * 2 }} {{ (3 - 5) * 2 }} {{ -n }} {{ +n }} {{ 2 ** 3 ** 2 }}",
    "{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ 2.0 ~ missing }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }}",
    "{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' != 'b' }}",
    "{{ 2 >= 2 }} {{ 3 <= 2 }} {{ [1, 2] == [1, 2] }} {{ (1, 2) == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] < [1, 3] }}",
    "{{ 'el' in 'Hello' }} {{ 2 in l }} {{ 'a' in d }} {{ 9 not in l }} {{ 'x' in missing }} {{ not 1 in l }}",
    "{{ 1 and 0 or 'x' }} {{ not true }} {{ '' or 'd' }} {{ 'a' and 'b' }} {{ not not 1 }} {{ 0 or none }}",
    "{{ 'y' if t else 'n' }} {{ 'y' if z }} {{ 'a' if false else 'b' if false else 'c' }} {{ (1 if t else 2) + 1 }}",
    "{{ 'x' + 1 ~ 2 * 3 }} {{ -2 ** 2 }} {{ 1 - 1 - 1 }} {{ 2 * 3 % 4 }} {{ -1|string ~ '!' }} {{ 1 + 2|string|length }}",
    # access
    "{{ d.b }} {{ d['a'] }} {{ d.missing }} {{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ s[1] }} {{ u[-1] }} {{ l.0 }} {{ d['items'] }}",
    "{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ s[2:5] }} {{ u[::-1] }} {{ l[::2] }} {{ s[-5:] }} {{ l[5:] }} {{ l[-99:99] }} {{ l[2:0:-1] }} {{ (1, 2, 3)[1:] }}",
    "{{ d.get('a') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }}",
    "{{ d.items is callable }} {{ d.items is defined }} {{ s.upper is defined }} {{ s.nope is defined }} {{ n.real is string }}",
    # statements
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}{% if e %}x{% endif %}{% if d and l %}y{% endif %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}{% for x in e %}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}no{% endfor %}{% for x in l if x > 9 %}{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in u %}{{ c }}.{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}{% for x in missing %}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set a, b = 1, 'q' %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c + d2 }}{% set t2 = 1, 2 %}{{ t2 }}",
    "{% set ns = namespace(x=0, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}{% set ns2 = namespace({'q': 1}) %}{{ ns2.q }}{{ ns['x'] }}",
    "{% set b %}  in {{ n }}{% set inner = 1 %}\n  {% endset %}[{{ b }}]{{ inner }}{% set c | trim | upper %} abc {% endset %}[{{ c }}]",
    DEFAULTS_MACRO,
    JSON_TYPE_MACRO,
    "{% set g = 'glob' %}{% macro m() %}{{ g }}{{ n }}{% set g = 1 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}{{ m() | length }}{{ m is callable }}",
    "{% generation %}a{{ n }}{% set q = 1 %}\n{% endgeneration %}\nb{{ q }}{% for x in l %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
    # white space
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n",
    "a \n {%- if t -%} \n b \n {%- endif -%} \n c",
    "  {%+ if t %}x{% endif +%}\n y {{- n -}} z \n\n",
    "a {# c #} b\n  {# line #}\nc {#- strip -#} d\n{#+ keep #}\ne",
    "{% raw %}{{ x }} {% if %}{% endraw %}\n{%- raw -%}  {# q #}  {%- endraw -%}  z {% raw %} {% endraw %}",
    "x\r\ny\rz\n{% if t %}\r\nw{% endif %}\r\n",
    "{{ n }}\n\n{{ n }}\n   {{ n }}  \n{% if t %}   {% endif %}  \n\n\n",
    "\t{% set q = 1 %}\t\n  text {% set r = 2 %}\n{{ '  ' }}{% if t %}\n\n{% endif %}{{ q }}{{ r }}",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }} { { } } {x} %} }} #}",
    # filters
    "[{{ ws | trim }}] [{{ 'xxaxx' | trim('x') }}] [{{ z | trim }}] [{{ missing | trim }}] [{{ 5 | trim }}]",
    "{{ s | upper }} {{ u | lower }} {{ 'élan VITAL' | capitalize }} {{ missing | upper }}",
    "{{ s | length }} {{ u | length }} {{ l | length }} {{ d | count }} {{ missing | length }} {{ '' | length }}",
    "{{ l | join }} {{ l | join(', ') }} {{ ls | join('-') }} {{ rows | join(',', attribute='k') }} {{ 'abc' | join('.') }} {{ [1, none, 2.0] | join(' ') }}",
    "{{ rows | map(attribute='k') | list }} {{ ls | map('upper') | join }} {{ rows | map(attribute='v', default='-') | join(',') }} {{ rows[:2] | map(attribute='in.x') | list }}",
    "{{ rows | selectattr('v') | map(attribute='k') | list }} {{ rows | selectattr('k', 'equalto', 'b') | list | length }} {{ rows | rejectattr('k', 'in', ['a', 'b']) | list }}",
    "{{ l | select('odd') | list }} {{ l | reject('equalto', 1) | list }} {{ [0, 1, ''] | select | list }} {{ l | select('gt', 1) | list }} {{ rows | selectattr('v', 'defined') | list | length }}",
    "{{ missing | default('d') }} {{ z | default('d') }} {{ z | default('d', true) }} {{ '' | default('d', boolean=true) }} {{ 0 | d(5) }} {{ missing | default }}",
    "{{ l | first }} {{ l | last }} {{ s | first }} {{ s | last }} {{ e | first }} {{ d | first }} {{ rows | map(attribute='k') | first }}",
    "{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 'ab' | replace('', '-') }} {{ 5 | replace('5', 'five') }} {{ s.replace('o', '') }} {{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '-3.9' | int }} {{ ' 12 ' | int }} {{ z | int }} {{ true | int }}",
    "{{ 'héy' | list }} {{ d | list }} {{ (1, 2) | list }} {{ l | string }} {{ (l | string) | length }} {{ '<b>' | safe }} {{ z | string }}",
    "{{ d | items | list }} {% for k, v in d | items %}{{ k }}{% endfor %} {{ missing | items | list }} {{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ l | reverse | list }} {{ u | reverse }}",
    "{{ nest | tojson }} {{ d | tojson }} {{ floats | tojson }} {{ (1, 2) | tojson }} {{ u | tojson }} {{ none | tojson }} {{ '\\u2028</script>\\x00\\x1f\\x7f' | tojson }}",
    "{{ d | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ [[], {}] | tojson(indent=1) }} {{ nest | tojson(indent='--') }} {{ d | tojson(indent=0) }}",
    "{{ d | tojson(sort_keys=true) }} {{ nest | tojson(ensure_ascii=true) }} {{ u | tojson(true) }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(indent=2, separators=('; ', '=')) }}",
    "{{ 'yes' if l | select('gt', 99) else 'no' }} {{ 'yes' if l | map('string') | list else 'no' }}",
    # methods
    "[{{ ws.strip() }}] [{{ ws.lstrip() }}] [{{ ws.rstrip() }}] {{ 'xyaxy'.strip('yx') }} {{ 'éaé'.strip('é') }} {{ 'abc'.lstrip('ba') }} {{ 'abc'.rstrip('cb') }}",
    "{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ws.split() }} {{ ' a b  c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'x</t>y'.split('</t>')[-1] }}",
    "{{ s.startswith('He') }} {{ s.endswith('d') }} {{ s.startswith(('x', 'H')) }} {{ s.upper() }} {{ s.lower() }} {{ 'they are o2 éa'.title() }} {{ 'aB'.capitalize() }}",
    "{{ ', '.join(['a', 'b']) }} {{ ''.join(ls) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ '-'.join('abc') }}",
    # tests
    "{% for v in [s, n, f, t, z, l, d, missing, (1,)] %}{{ v is string }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }}{{ v is none }}{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}{{ v is defined }}{{ v is undefined }}{{ v is true }}{{ v is false }}\n{% endfor %}",
    "{{ 3 is odd }} {{ 3 is even }} {{ -3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne(2) }} {{ 2 is gt 1 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 1 is lt 2 and 2 is ge 2 }} {{ none is sameas none }}",
    "{{ missing is not defined }} {{ not missing is defined }} {{ missing is defined or true }} {{ 'a' if x is defined else 'b' }} {{ d.q is defined }} {{ missing == missing2 }} {{ range(3) | map('string') | list is iterable }}",
    # globals
    "{{ range(4) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ strftime_now('%d %B %Y|%Y-%m-%d|%H:%M:%S|%j|%b|%A|%p|%%') }}",
    "{{ raise_exception('Only ' ~ n ~ ' roles: {user}!') }}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}ok",
    # failures
    "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ 1 / 0 }}",
    "{{ 1 % 0 }}", "{{ s() }}", "{{ s.nope() }}", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ n | length }}",
    "{{ l | map('nope') | list }}", "{{ s | nope }}", "{{ s is nope }}", "{{ 1 < 'a' }}", "{{ none < 1 }}", "{% for x in n %}{% endfor %}",
    "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% set q.x = 1 %}", "{% set a, b = [1] %}", "{{ missing | tojson }}",
    "{{ l[::0] }}", "{{ missing[1:] }}", "{{ 1 in 2 }}", "{{ ''.split('') }}", "{{ ''.join([1]) }}", "{{ -s }}", "{{ range(1, 5, 0) }}",
    "{{ s.__class__.__mro__ }}", "{{ ().__class__.__base__ }}", "{{ s.startswith(1) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ l | select('odd') | length }}",
    # syntax errors
    "{{", "{{ }}", "{{ a", "{% if %}", "{% if a %}", "{% endif %}", "{% for x %}{% endfor %}", "{% for %}", "{# open", "{{ 'open }}", "{{ (1 }}",
    "{{ [1, }}", "{{ 1 + }}", "{{ a b }}", "{{ a..b }}", "{{ a | }}", "{{ a is }}", "{% nope %}", "{% set %}", "{% set x %}", "{% set 1 = 2 %}",
    "{% raw %}x", "{{ {1 2} }}", "{{ a ! b }}", "{% break %}", "{% if a %}{% else %}{% elif b %}{% endif %}", "{% for x in l %}{% endif %}", "{{ ) }}",
    "{% macro %}{% endmacro %}", "{{ '\\x4' }}", "{{ 1 if }}", "{{ a[ }}", "{{ a[1:2:3:4] }}", "{%", "{{ a.'b' }}", "{% if a %}{% endfor %}",
]


def main():
    cases = []
    for file, source, name, messages, prompt, extra in model_cases():
        cases.append({"file": file, "name": name, "messages": messages,
                      "add_generation_prompt": prompt, "extra": extra,
                      **render(source, messages, prompt, extra)})
    for i, source in enumerate(FEATURES + chat_template_builtins.FEATURES):
        messages = [message("system", "x")]
        cases.append({"source": source, "name": f"feature {i}",
                      **render(source, messages, False, DATA)})
    out = {"generator": "tests/golden/chat_templates.py, jinja2 " + jinja2.__version__,
           "now": NOW.isoformat(), "data": DATA, "cases": cases}
    (HERE / "chat_templates.json").write_text(json.dumps(out, indent=0) + "\n", encoding="ascii")
    print({k: sum(k in c for c in cases) for k in ("expected", "raised", "fails")})


if __name__ == "__main__":
    main()
