"""Idioms of Jinja that chat templates use or may use, by subject.

They follow jinja2's documentation (statements, filters, tests, global functions) and Python's (methods of strings, lists
and dictionaries, slices, the two ways to format a string). `make_jinja.py` renders them.
"""

import jinja2

MESSAGES = [
    {"role": "system", "content": "Be <kind> & \"brief\"."},
    {"role": "user", "content": " What's 2 + 2?\n"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Add.\nThem.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [1.5, None, True]}}},
            {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": {}}},
        ],
    },
    {"role": "tool", "name": "add", "tool_call_id": "c1", "content": "4"},
    {"role": "assistant", "content": "<think>\nFour\n</think>\n\nIt is 4."},
    {"role": "user", "content": "Größe 日本 😀?"},
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <two> numbers.",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "number"}, "a": {"type": ["number", "null"], "enum": [1, 2]}},
                "required": ["a"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]

# Further variables.
VARIABLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "text": "The quick brown Fox",
    "lines": "one\n two\r\nthree\n\nfour",
    "unicode": "Straße ÆØÅ ǆ ﬁ",
    "html": "<a href=\"x\">it's & 'that'</a>",
    "spaces": " \t a  b \u00a0\n",
    "empty": "",
    "numbers": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "mixed": [1, "a", None, True, 2.5, [1], {"k": "v"}],
    "people": [
        {"name": "Ann", "age": 30, "city": "Rome", "tags": ["x"]},
        {"name": "bob", "age": 25, "city": "Oslo", "tags": []},
        {"name": "Cid", "age": 30, "city": "rome", "tags": ["y", "z"], "admin": True},
    ],
    "mapping": {"b": 2, "a": 1, "C": 3},
    "nested": {"list": [{"x": 1}, {"x": 2}], "map": {"deep": {"er": "yes"}}, "items": "own"},
    "large": 9007199254740993,
    "huge": 18446744073709551615,
    "negative": -7,
    "float": 2.5,
    "whole": 3.0,
    "tiny": 1e-07,
    "big": 1e20,
    "yes": True,
    "no": False,
    "nothing": None,
    "enable_thinking": False,
}

PRINTING = r"""
{{ none }} {{ None }} {{ true }} {{ True }} {{ false }} {{ False }}
{{ nothing }}{{ yes }}{{ no }}
{{ undefined_name }}|
{{ 1 }} {{ -1 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ -0.0 }}
{{ big }} {{ tiny }} {{ whole }} {{ float }} {{ large }} {{ huge }}
{{ 123456789012345678901234567890 }}
{{ 18446744073709551616 }}
{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}
{{ 1.5e3 }} {{ 2E-3 }} {{ 12_3.4_5 }}
{{ [] }} {{ {} }} {{ () }} {{ (1,) }} {{ (1, 2) }} {{ [1, [2]] }}
{{ mixed }}
{{ mapping }}
{{ nested }}
{{ messages[2].tool_calls }}
{{ ["it's", 'say "hi"', "both ' and \"", 'back\\slash', 'tab\t', 'new\nline', 'é', '\x07', '\u00a0'] }}
{{ ['😀', '\u200b', '\x7f', '\u00ad', '\r'] }}
{{ {'a': none, 1: true, 2.5: [1e20, 1e-7], (1, 2): {}} }}
{{ [1e20, 1e16, 1.0, 1e-5] }}
{{ [undefined_name] | length }}
{{ 'a' 'b' }}
{{ "a\nb" }}{{ 'a\tb' }}{{ "\"" }}{{ '\'' }}{{ '\\n' }}
{{ '\u00e9' }} {{ '\x41' }} {{ '\U0001F600' }} {{ '\101' }} {{ '\0' | length }}
{{ '\q' }}
{{ '日本語' }} {{ '😀' | length }} {{ unicode }}
{{ '{{ x }}' }} {{ '{% raw %}' }} {{ '#}' }}
{{ [] is string }}{{ '' }}{{ [''] }}
{{ 1,2 }}
{{ text, 1 }}
"""

OPERATORS = r"""
{{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }}
{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ -1 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 2 ** 64 }} {{ 2 ** 100 }}
{{ 2 ** 200 }}
{{ large + 1 }} {{ huge + 1 }} {{ huge * huge }} {{ large * 1.0 }}
{{ huge * huge * huge }}
{{ 10 - 3 - 2 }} {{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 1 + -1 }} {{ +1 }} {{ - 1 }} {{ --1 }}
{{ 1 + 1.0 }} {{ true + true }} {{ true * 3 }} {{ 1.5 + true }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 / 0.0 }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'a' * 0 }}|{{ 'a' * -1 }}| {{ '-' * 5 }}
{{ [1] + [2] }} {{ [1, 2] * 2 }} {{ (1,) + (2,) }} {{ (1, 2) * 2 }} {{ 2 * [0] }} {{ [1] * -1 }}
{{ [1] + (2,) }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' + none }}
{{ none + 'a' }}
{{ nothing + 1 }}
{{ undefined_name + 'a' }}
{{ 'a' + undefined_name }}
{{ {'a': 1} + {'b': 2} }}
{{ 'a' * 'b' }}
{{ 'a' * 1.5 }}
{{ 'b' - 'a' }}
{{ -'a' }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] ~ {'k': none} }}
{{ 1 ~ 2 }} {{ 1e20 ~ '' }} {{ big ~ '' }} {{ undefined_name ~ 'x' }} {{ (1, 2) ~ '' }}
{{ 'a' ~ 'b' + 'c' }} {{ 1 ~ 2 + 3 }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 0 == false }} {{ '1' == 1 }} {{ none == false }} {{ [1] == [1.0] }} {{ [1] == (1,) }}
{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ 'a' != 'b' }} {{ none != none }} {{ undefined_name == undefined_name }}
{{ undefined_name == none }} {{ undefined_name != '' }} {{ undefined_name == other_name }}
{{ 1 < 2 }} {{ 1 < 1.5 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ (1, 2) >= (1, 2) }} {{ true < 2 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 > 1 }} {{ 1 == 1 != 2 }} {{ 1 in [1] in [[1]] }} {{ 1 < 2 > 1 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 'a' > 1 }}
{{ [1] < 1 }}
{{ mapping < mapping }}
{{ nothing > 0 }}
{{ undefined_name < 1 }}
{{ undefined_name > 1 }}
{{ 'b' in 'abc' }} {{ '' in 'abc' }} {{ 'd' not in 'abc' }} {{ 1 in [1, 2] }} {{ '1' in [1] }} {{ 'a' in mapping }} {{ 2 in mapping }}
{{ 1 in 'a1' }}
{{ nothing in 'none' }}
{{ 1 in 1 }}
{{ 'a' in none }}
{{ 'a' in undefined_name }} {{ 'a' not in undefined_name }}
{{ undefined_name in [1] }}
{{ undefined_name in 'a' }}
{{ 'role' in messages[0] }} {{ 'tool_calls' in messages[0] }} {{ 'x' in {} }} {{ 1.0 in [1] }} {{ true in [1] }} {{ none in [none] }}
{{ [1] in [[1], 2] }} {{ (1, 2) in {(1, 2): 3} }} {{ 'er' in nested.map.deep }}
{{ not true }} {{ not '' }} {{ not [] }} {{ not 0 }} {{ not 0.0 }} {{ not none }} {{ not undefined_name }} {{ not {} }} {{ not 'a' in 'b' }}
{{ true and 'a' }} {{ 0 and 'a' }} {{ '' or 'b' }} {{ none or [] }} {{ [] or {} or 0 }} {{ 'a' or undefined_function() }}
{{ 1 if true else 2 }} {{ 1 if false else 2 }} {{ 1 if false }}| {{ 'a' if 1 else 'b' if 1 else 'c' }} {{ 'x' if '' else 'y' if 0 else 'z' }}
{{ ('a' if yes else 'b') ~ 'c' }} {{ 'a' if yes else 'b' ~ 'c' }}
{{ true and not false or false }} {{ 1 if yes and not no else 2 }} {{ (1 == 1) and (2 == 2) }}
{{ yes is true and no is false }} {{ not nothing is none }}
{{ 2 if 1 < 2 else 3 }} {{ [1 if yes else 2, 3] }} {{ {'a': 1 if no else 2} }}
{{ {'a': 1, 'a': 2} }} {{ {1: 'a', 1.0: 'b'} }}
{{ (1 if false) is defined }} {{ (1 if false) ~ 'x' }}
{{ (none or 'x') ~ (0 or 'y') }}
"""

FORMATTING = r"""
{{ '%s' % 'a' }} {{ '%s-%s' % ('a', 'b') }} {{ '%d' % 5 }} {{ '%i' % 5 }} {{ '%d%%' % 50 }} {{ '%s' % 1 }}
{{ '%s %s %s %s' % (none, true, 1.0, [1, 'a']) }} {{ '%s' % [1, 2] }} {{ '%s' % {'a': 1} }}
{{ '%5d|%-5d|%05d|%+d|% d' % (42, 42, 42, 42, 42) }}
{{ '%.2f|%5.2f|%-8.3f|%08.2f|%+.1f|%f' % (3.14159, 3.14159, 3.14159, 3.14159, 3.14159, 1) }}
{{ '%e|%.2e|%E|%g|%G|%g|%g' % (12345.678, 12345.678, 12345.678, 0.0001, 1e-10, 1e20, 100000) }}
{{ '%x|%X|%o|%#x|%#o|%08x' % (255, 255, 8, 255, 8, 255) }}
{{ '%r|%a|%r' % ('é\'', 'é', 1.0) }}
{{ '%5s|%-5s|%.2s|%5.1s|%c|%c' % ('abc', 'abc', 'abc', 'abc', 'x', 65) }}
{{ '%(name)s is %(age)d' % {'name': 'Ann', 'age': 30} }} {{ '%(name)s' % people[0] }} {{ '%(name)-5s|' % people[0] }}
{{ '%*d|%-*d|%.*f' % (5, 42, 5, 42, 2, 3.14159) }}
{{ '%d' % 3.99 }} {{ '%d' % true }} {{ '%.0f' % 2.5 }} {{ '%.3g' % 1234.5 }} {{ '%#.3g' % 1 }}
{{ '%s' % (1,) }} {{ '%s' % ((1, 2),) }} {{ 'a%%b' % () }}
{{ '%s' % undefined_name }}| {{ '%s' % none }} {{ '%s' % true }} {{ '%s' % '' }}|
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ 'a' % 'b' }}
{{ '%d' % 'a' }}
{{ '%d' % none }}
{{ '%z' % 1 }}
{{ '%' % 1 }}
{{ '%(x)s' % {'y': 1} }}
{{ '%x' % 1.5 }}
{{ '%d' % large }} {{ '%x' % huge }} {{ '%d' % big }} {{ '%s' % big }} {{ '%d' % negative }} {{ '%05d' % negative }} {{ '%x' % -255 }}
{{ '%s' | format('a') }} {{ '%s %d' | format('a', 1) }} {{ '%(a)s' | format(a=1) }} {{ '%.1f' | format(2.25) }}
{{ '%s, %s!' | format(text, 'x') }} {{ '%s' | format(none) }} {{ '%s' | format([1]) }}
{{ '{} {}'.format('a', 1) }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{a} {b}'.format(a=1, b='x') }} {{ '{{}}'.format() }} {{ '{{{}}}'.format(1) }}
{{ '{:5}|{:<5}|{:>5}|{:^5}|{:*^7}'.format('ab', 'ab', 'ab', 'ab', 'ab') }}
{{ '{:5}|{:05}|{:+}|{:,}|{:_}|{:x}|{:#x}|{:b}|{:o}|{:e}|{:.2f}|{:%}|{:.1%}'.format(42, 42, 42, 1234567, 1234567, 255, 255, 5, 8, 1234.5, 3.14159, 0.25, 0.256) }}
{{ '{!r} {!s} {!a}'.format('a', 'b', 'é') }} {{ '{0[0]} {1[k]}'.format([1], {'k': 2}) }} {{ '{:{}}|'.format('a', 5) }}
{{ '{} {} {} {}'.format(none, true, 1.0, [1, 'a']) }} {{ '{:.3}'.format('abcdef') }} {{ '{:>{w}}'.format('x', w=4) }}
{{ '{:,.2f}'.format(1234567.891) }} {{ '{:g}'.format(1e20) }} {{ '{:d}'.format(3) }} {{ '{:c}'.format(65) }} {{ '{:n}'.format(5) }}
{{ '{}'.format(big) }} {{ '{:.3}'.format(1234.5) }} {{ '{:10}|'.format(true) }} {{ '{:s}'.format('x') }} {{ '{:}'.format(1.5) }}
{{ '{} {}'.format('a') }}
{{ '{x}'.format() }}
{{ '{'.format() }}
{{ '{:d}'.format('a') }}
{{ '{:z}'.format(1) }}
{{ '{a[b]}'.format_map({'a': {'b': 1}}) }} {{ '{a}'.format_map({'a': 1}) }}
{{ '{0.x}'.format({'x': 1}) }}
"""

STRINGS = r"""
{{ text.upper() }} {{ text.lower() }} {{ text.title() }} {{ text.capitalize() }} {{ text.swapcase() }} {{ 'ß'.casefold() }}
{{ unicode.upper() }} {{ unicode.lower() }} {{ unicode.title() }} {{ unicode.capitalize() }} {{ unicode.swapcase() }} {{ 'ΑΣ'.lower() }}
{{ "they're bill's".title() }} {{ 'a-b c_d 3e'.title() }} {{ 'ǆabc'.capitalize() }} {{ 'ﬁne'.capitalize() }}
{{ '  a b '.strip() }}|{{ '  a'.lstrip() }}|{{ 'a  '.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'xyaxy'.lstrip('yx') }} {{ 'axyx'.rstrip('xy') }}
{{ spaces.strip() }}|{{ spaces.strip(none) }}|{{ '\u200ba\u200b'.strip() | length }} {{ '\x1fa\x1c'.strip() }}
{{ 'a'.strip('') }} {{ '\n\na\n'.lstrip('\n') }}|{{ messages[4].content.split('</think>')[-1].lstrip('\n') }}
{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(none, 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a,b'.split(sep=',') }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.rsplit(none, 1) }} {{ 'a b c'.rsplit() }} {{ 'a,b,c'.rsplit(',') }} {{ 'a  b  c '.rsplit(maxsplit=1) }} {{ 'a,b,c'.rsplit(sep=',', maxsplit=1) }}
{{ ''.split() }} {{ ''.split(',') }} {{ ',a,'.split(',') }} {{ 'abc'.split('x') }} {{ 'a b'.split(' ', 0) }} {{ ' a b '.split(none, 0) }} {{ ' a b  c '.split(none, 1) }}
{{ 'a'.split('') }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\n'.splitlines() }} {{ ''.splitlines() }} {{ 'a\rb\x0bc\x0cd\x1ce\x85f\u2028g'.splitlines() }} {{ 'a\nb'.splitlines(keepends=True) }}
{{ ', '.join(['a', 'b']) }} {{ ''.join('abc') }} {{ '-'.join(mapping) }} {{ ','.join(('a',)) }} {{ 'x'.join([]) }}|
{{ ', '.join([1, 2]) }}
{{ ', '.join(1) }}
{{ ','.join(words | map('upper')) }} {{ ','.join(words | sort) }} {{ '\n'.join(lines.splitlines()) }}
{{ 'abcabc'.replace('b', 'x') }} {{ 'abcabc'.replace('b', 'x', 1) }} {{ 'abc'.replace('', '-') }} {{ 'aaa'.replace('aa', 'b') }} {{ 'abab'.replace('a', '', -1) }}
{{ 'abc'.replace('', '-', 2) }} {{ 'a'.replace('b', 'c') }}
{{ 'a'.replace('a', 1) }}
{{ 'a'.replace('a') }}
{{ 'abcabc'.find('c') }} {{ 'abcabc'.find('x') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.find('c', 3) }} {{ 'abcabc'.find('c', 0, 2) }} {{ 'éa'.find('a') }} {{ 'abc'.find('') }} {{ 'abc'.find('', 9) }} {{ 'abc'.rfind('') }} {{ 'abcabc'.rfind('b', 0, -2) }}
{{ 'abc'.index('c') }} {{ 'abcabc'.rindex('a') }} {{ 'abcabc'.index('a', 1) }}
{{ 'abc'.index('x') }}
{{ 'abcabc'.count('c') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'abcabc'.count('a', 1) }} {{ 'abcabc'.count('c', 0, -1) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('') }} {{ 'abc'.startswith('ab', 0, 1) }} {{ 'abc'.startswith(()) }}
{{ 'abc'.endswith('bc') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.endswith('abcd') }} {{ 'abc'.endswith('c', -1) }}
{{ 'abc'.startswith(['a']) }}
{{ 'abc'.startswith(1) }}
{{ 'abc'.startswith(none) }}
{{ 'TestHook'.removeprefix('Test') }} {{ 'abc'.removeprefix('x') }} {{ 'MiscTests'.removesuffix('Tests') }} {{ 'abc'.removesuffix('') }} {{ 'abab'.removeprefix('ab') }}
{{ 'ab'.center(6) }}|{{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }} {{ 'ab'.ljust(5) }}|{{ 'ab'.ljust(5, '.') }} {{ 'ab'.rjust(5) }} {{ 'ab'.rjust(5, '0') }} {{ '-42'.zfill(5) }} {{ '42'.zfill(5) }} {{ '+1'.zfill(4) }} {{ 'abc'.zfill(2) }}
{{ 'a\tb\tc'.expandtabs() }}|{{ 'a\tb'.expandtabs(4) }}|{{ 'ab\n\tc'.expandtabs(tabsize=2) }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ '12'.isnumeric() }} {{ '12'.isdecimal() }} {{ ' '.isspace() }} {{ 'Ab'.istitle() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ 'a1_'.isidentifier() }} {{ 'a'.isascii() }} {{ 'a'.isprintable() }}
{{ ''.isalpha() }} {{ ''.isalnum() }} {{ ''.isdigit() }} {{ ''.isspace() }} {{ ''.istitle() }} {{ ''.islower() }} {{ ''.isascii() }} {{ ''.isprintable() }} {{ ''.isidentifier() }}
{{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '½'.isnumeric() }} {{ '½'.isdigit() }} {{ '一'.isnumeric() }} {{ '٣'.isdigit() }} {{ '٣'.isdecimal() }} {{ 'é'.isascii() }} {{ '\n'.isprintable() }} {{ 'é'.isalpha() }} {{ 'ª'.isalpha() }} {{ 'ª'.islower() }}
{{ 'Hello World'.istitle() }} {{ 'Hello world'.istitle() }} {{ "It'S".istitle() }} {{ '1a'.isidentifier() }} {{ 'a1'.islower() }} {{ '1'.islower() }} {{ '\x1f'.isspace() }} {{ '\u200b'.isspace() }}
{{ 'abc'.translate({97: 'x', 98: none, 99: 100}) }}
{{ 'é'.encode('utf-8') | length }} {{ 'é'.encode() }}
{{ 'abc'.encode('utf-8').decode('utf-8') }}
{{ 'abc'.maketrans('a', 'b') }}
{{ 'abc'.unknown() }}
{{ 'abc'.length() }}
{{ 'abc'.append('d') }}
{{ 'abc'.upper(1) }}
{{ text.upper is callable }} {{ text.upper is defined }} {{ text['upper'] is string }}
{{ 'abc'.__len__() }}
{{ 'abc'.__class__ }}|
{{ 'a'.join(['x', none]) }}
{{ text[0] }} {{ text[-1] }} {{ text[4:9] }} {{ text[::-1] }} {{ text[:3] }} {{ text[-3:] }} {{ text[::2] }} {{ text[-1:-4:-1] }} {{ text[10:2:-3] }} {{ text[2:1] }}| {{ text[100:] }}|
{{ 'éa日'[1] }} {{ 'éa日'[::-1] }} {{ 'éa日'[-2:] }} {{ 'abc'[10] }}| {{ 'abc'[-10] }}| {{ 'abc'[:-1] }} {{ 'abc'[:-10] }}| {{ 'abc'[-10:2] }}
{{ text['upper']() }} {{ text['x'] }}| {{ text.x }}| {{ text.0 }}
{{ text | length }} {{ text.split() | length }} {{ text.split()[-1] }} {{ text.split(' ')[1:] | join('-') }} {{ text.split()[::-1] }}
{{ text.lower().startswith('the') and text.endswith('x') }} {{ (text ~ '!').strip('!T') }} {{ ('a' ~ 'b').upper() }} {{ 'a'.upper().lower().title() }}
{{ html.strip('<>').split('"')[1] }} {{ '%s'.upper() }} {{ '<|' ~ 'x'.strip() ~ '|>' }}
{{ 'a b'.split(' ')[0].upper() ~ 'c' }} {{ '1.2.3'.split('.') | map('int') | sum }} {{ 'ab'.join(['-', '-']) }}
{{ 'x' is in 'xyz' }} {{ 'abc' | first }} {{ 'abc' | last }} {{ 'cab' | sort | join }} {{ 'abc' | list }} {{ 'abc' | reverse }}
"""

CONTAINERS = r"""
{{ numbers[0] }} {{ numbers[-1] }} {{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[:-1] }} {{ numbers[10] }}| {{ numbers[-10] }}| {{ numbers[::2] }} {{ numbers[2:0:-1] }} {{ numbers[-2:] }}
{{ numbers[:] }} {{ numbers[5:] }} {{ numbers[-100:100] }} {{ numbers[::-2] }} {{ numbers[0:3:2] }} {{ numbers[1::-1] }} {{ numbers[:0:-1] }} {{ numbers[:-3:-1] }} {{ numbers[-1::-1] }}
{{ numbers[true] }} {{ numbers['0'] }}| {{ numbers.0 }} {{ numbers[1.0] }}|
{{ numbers[::0] }}
{{ mapping[1:] }}
{{ nothing[1:] }}
{{ undefined_name[1:] }}
{{ undefined_name[0] }}
{{ undefined_name.x }}
{{ undefined_name.x() }}
{{ undefined_function() }}
{{ nothing.x }}|
{{ nothing['x'] }}|
{{ nothing.x.y }}
{{ mapping.a.b }}| {{ mapping.zzz }}|
{{ mapping.zzz.b }}
{{ (1, 2, 3)[1:] }} {{ (1, 2)[0] }} {{ (1, 2, 3)[::-1] }} {{ range(5)[1:3] | list }} {{ range(5)[-1] }} {{ range(5)[::-1] | list }}
{{ messages[::-1] | length }} {{ messages[::-1][0].role }} {{ messages[1:][0]['role'] }} {{ messages[-1]['content'] }} {{ messages[:2] | map(attribute='role') | list }}
{{ mapping.a }} {{ mapping['a'] }} {{ mapping['zzz'] }}| {{ mapping.get('a') }} {{ mapping.get('zzz') }} {{ mapping.get('zzz', 'd') }} {{ mapping.get('zzz', default) }}|
{{ mapping.keys() | list }} {{ mapping.values() | list }} {{ mapping.items() | list }} {{ mapping | length }} {{ mapping | list }}
{{ mapping.keys() }} {{ mapping.values() }} {{ mapping.items() }}
{{ {}.keys() | list }} {{ {}.items() | list }} {{ 'a' in mapping.keys() }} {{ 1 in mapping.values() }} {{ ('a', 1) in mapping.items() }}
{{ mapping.items() | length }} {{ mapping.keys() | length }} {{ mapping.items() | first }} {{ mapping.keys() | sort }}
{{ nested.items is callable }} {{ nested.items is mapping }} {{ nested.items is string }} {{ 'x' if nested.items else 'y' }} {{ nested['items'] }} {{ nested.list[0].x }} {{ nested.map.deep.er }} {{ nested['map']['deep']['er'] }} {{ nested.get('map').get('deep') }}
{{ nested.keys() | list }}
{{ nested.items() | list | length }}
{{ mapping.copy() }} {{ numbers.copy() }} {{ mapping.copy() == mapping }}
{{ numbers.index(2) }} {{ numbers.count(3) }} {{ (1, 2, 1).count(1) }} {{ (1, 2).index(2) }} {{ words.index('fig', 1) }} {{ [1, true].count(1) }}
{{ numbers.index(9) }}
{{ numbers.append(4) }}
{{ numbers.pop() }}
{{ numbers.sort() }}
{{ numbers.extend([1]) }}
{{ numbers.insert(0, 1) }}
{{ numbers.remove(1) }}
{{ numbers.reverse() }}
{{ numbers.clear() }}
{{ mapping.update({'x': 1}) }}
{{ mapping.pop('a') }}
{{ mapping.setdefault('x', 1) }}
{{ mapping.clear() }}
{{ mapping.popitem() }}
{% set _ = numbers.append(4) %}{{ numbers }}
{% do numbers.append(4) %}
{{ mapping.fromkeys(['a', 'b'], 0) }} {{ dict.fromkeys(['a']) }}
{{ mapping.unknown() }}
{{ numbers.unknown() }}
{{ range(10, step=2) }}
{{ mapping.a() }}
{{ (1).bit_length() }} {{ (2.0).is_integer() }} {{ (2.5).is_integer() }}
{{ (255).to_bytes(2, 'big') }}
{{ 1.5.hex() }}
{{ {'a': [1, 2]}.a[-1] }} {{ {'x y': 1}['x y'] }} {{ {1: 'a'}[1] }} {{ {1: 'a'}['1'] }}| {{ {none: 1}[none] }} {{ {true: 1}[1] }} {{ {1.0: 'f'}[1] }}
{{ [[1, 2], [3]] | sum(start=[]) }} {{ [1, 2] == [1, 2] }} {{ [3, 1] | sort | first }} {{ [[1, 2], [3, 4]][1][0] }} {{ ([1, 2] + [3])[2] }} {{ ([1, 2] + [3])[-1] }} {{ ([1] + [2]) | length }}
{{ {'a': 1, **{'b': 2}} }}
{{ [*numbers, 4] }}
{{ {'a': {'b': {}}} }} {{ {'a': 1}.items() | list }} {{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }} {{ dict() }} {{ dict([('a', 1), ('b', 2)]) }} {{ dict(mapping, a=5) }}
{{ dict(mapping.items()) }} {{ dict(people[0]) == people[0] }} {{ dict(**mapping) }}
{{ [a for a in numbers] }}
{{ messages[2].tool_calls[0].function.arguments | items | list }} {{ messages[2].tool_calls[1].function.arguments | items | list }} {{ messages[2].tool_calls[1].function.arguments }}
{{ messages[2].tool_calls[0]['function']['arguments'].items() | list }} {{ messages[2].tool_calls[0].function.arguments.b[0] }}
"""

FILTERS = r"""
{{ -5 | abs }} {{ (-5) | abs }} {{ -2.5 | abs }} {{ true | abs }} {{ negative | abs }}
{{ people[0] | attr('name') }}| {{ text | attr('upper') is defined }} {{ namespace(a=1) | attr('a') }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }} {{ 'abc' | batch(2) | list }} {{ [] | batch(2) | list }}
{{ text | capitalize }} {{ 'ÉA' | capitalize }} {{ 5 | capitalize }} {{ none | capitalize }}
{{ 'a' | center(5) }}| {{ 'ab' | center(5) }}| {{ 'a' | center | length }}
{{ undefined_name | default('d') }} {{ none | default('d') }} {{ none | default('d', true) }} {{ '' | default('d', boolean=true) }} {{ undefined_name | d }}| {{ undefined_name | d('x') }} {{ mapping.zzz | default([]) }} {{ 0 | default(1) }} {{ undefined_name | default(default_value='x') }}
{{ undefined_name.x | default('d') }}
{{ mapping | dictsort }} {{ mapping | dictsort(true) }} {{ mapping | dictsort(false, 'value') }} {{ mapping | dictsort(reverse=true) }} {{ mapping | dictsort(by='value', reverse=true) }} {{ mapping | dictsort(case_sensitive=true) }}
{{ html | e }} {{ html | escape }} {{ html | forceescape }} {{ 1 | e }} {{ none | e }} {{ 'a/b' | e }} {{ ('<' | e) | e }} {{ ('<' | safe) | e }} {{ ('<' | safe) | forceescape }}
{{ ('<b>' | safe) ~ '<' }} {{ ('<b>' | e) + '<' }} {{ ('<b>' | safe) + '<' }} {{ '<' + ('<b>' | safe) }} {{ ('<' | e).upper() }} {{ ['<' | e] }} {{ html | safe }} {{ ('%s' | safe) % '<' }}
{{ 1000 | filesizeformat }} {{ 1 | filesizeformat }} {{ 1234567 | filesizeformat }} {{ 1234567 | filesizeformat(true) }} {{ 0 | filesizeformat }} {{ '5000' | filesizeformat }} {{ 1.5e12 | filesizeformat(binary=true) }}
{{ [1, 2] | first }} {{ [] | first }}| {{ 'abc' | first }} {{ mapping | first }} {{ range(3) | first }} {{ (x for x in []) }}
{{ '3.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ none | float }} {{ '1e3' | float }} {{ ' 2 ' | float }} {{ true | float }} {{ 'nan' | float }} {{ 'inf' | float }} {{ '1_0.5' | float }} {{ undefined_name | float }}
{{ people | groupby('age') | map('first') | list }} {% for age, list in people | groupby('age') %}{{ age }}:{{ list | map(attribute='name') | join(',') }};{% endfor %}
{% for group in people | groupby('city') %}{{ group.grouper }}={{ group.list | length }}{{ group[0] }};{% endfor %} {% for city, items in people | groupby('city', case_sensitive=true) %}{{ city }}{% endfor %}
{% for admin, list in people | groupby('admin', default=false) %}{{ admin }}{{ list | length }}{% endfor %} {{ people | groupby(attribute='age') | length }} {{ numbers | groupby(0) | length }}
{% for n, list in people | groupby('tags.0', default='-') %}{{ n }}{{ list | length }}{% endfor %}
{{ 'a\nb' | indent }} {{ 'a\nb' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(2, blank=true) }} {{ 'a\n\nb\n' | indent(2) }}| {{ 'a\nb' | indent('> ') }} {{ 'a\nb' | indent(width=1, first=true) }} {{ '\na' | indent(2) }} {{ 'a\r\nb' | indent(2) }} {{ '' | indent(2, true) }}| {{ 'a\n  \nb' | indent(2) }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ 'ff' | int(base=16) }} {{ '0xff' | int(0, 16) }} {{ none | int }} {{ true | int }} {{ ' 7 ' | int }} {{ '-3' | int }} {{ '1_000' | int }} {{ 'x' | int(default=9) }} {{ '0b11' | int(0, 2) }} {{ 1e20 | int }} {{ '123456789012345678901234567890' | int }} {{ undefined_name | int }} {{ [] | int }} {{ '٣' | int }}
{{ mapping | items | list }} {{ {} | items | list }} {{ undefined_name | items | list }}
{{ 'a' | items | list }}
{{ none | items | list }}
{% for k, v in messages[2].tool_calls[0].function.arguments | items %}{{ k }}={{ v }};{% endfor %}
{{ [1, 2, 3] | join }} {{ [1, none, true, 1.0] | join(', ') }} {{ people | join(',', attribute='name') }} {{ 'abc' | join('-') }} {{ mapping | join }} {{ [[1], {'a': 1}] | join('|') }} {{ [1, 2] | join(d='+') }} {{ [1, 2] | join(3) }} {{ [] | join(',') }}| {{ ['<', '>' | e] | join }} {{ [undefined_name, 'x'] | join('-') }} {{ [1e20] | join }}
{{ numbers | join(none) }} {{ people | join(attribute='age') }} {{ 5 | join }}
{{ [1, 2] | last }} {{ 'abc' | last }} {{ mapping | last }} {{ [] | last }}| {{ range(3) | last }}
{{ [] | length }} {{ 'abc' | count }} {{ mapping | length }} {{ undefined_name | length }} {{ (1, 2) | length }} {{ range(4) | length }}
{{ 5 | length }}
{{ none | length }}
{{ 'abc' | list }} {{ mapping | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ undefined_name | list }}
{{ 5 | list }}
{{ none | list }}
{{ 'ABC É' | lower }} {{ 5 | lower }} {{ true | lower }} {{ none | lower }} {{ [true, 'A'] | lower }}
{{ words | map('upper') | list }} {{ people | map(attribute='name') | list }} {{ people | map(attribute='zzz', default='-') | list }} {{ people | map(attribute='tags.0', default='none') | list }} {{ words | map('replace', 'p', 'b') | list }} {{ numbers | map('string') | list }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2], [3]] | map('first') | join }} {{ words | map('default', 'x') | list }} {{ [' a '] | map('trim') | list }} {{ [[2, 1]] | map('sort', reverse=true) | list }} {{ numbers | map('float') | sum }}
{{ people | map(attribute='name') | map('lower') | sort | join(',') }} {{ [[1, 2]] | map(attribute=0) | list }} {{ [[1, 2]] | map(attribute='1') | list }} {{ numbers | map('tojson') | join }} {{ messages | map(attribute='role') | unique | list }} {{ undefined_name | map('upper') | list }}
{{ words | map('unknown') | list }}
{{ words | map | list }}
{{ numbers | max }} {{ numbers | min }} {{ words | max }} {{ words | min }} {{ words | min(case_sensitive=true) }} {{ people | max(attribute='age') == people[0] }} {{ (people | min(attribute='age')).name }} {{ [] | max }}| {{ 'cab' | max }} {{ mapping | min }} {{ [1.5, 1] | max }} {{ words | max(true) }}
{{ [1, 'a'] | max }}
{{ {'b': [2, 1], 'a': 'x'} | pprint }} {{ 'a' | pprint }} {{ 1e20 | pprint }} {{ none | pprint }}
{{ people | pprint }}
{{ people | rejectattr('admin') | map(attribute='name') | list }} {{ people | rejectattr('age', 'gt', 26) | map(attribute='name') | list }} {{ numbers | reject('odd') | list }} {{ [0, 1, '', 'a', none] | reject | list }} {{ people | rejectattr('admin', 'defined') | list | length }} {{ numbers | reject('equalto', 1) | list }} {{ numbers | reject('in', [1, 2]) | list }}
{{ 'abab' | replace('a', 'x') }} {{ 'abab' | replace('a', 'x', 1) }} {{ 5 | replace('5', '6') }} {{ 'a' | replace('a', 1) }} {{ 'abab' | replace('a', 'x', count=1) }} {{ 'aXbX' | replace('X', '') }} {{ none | replace('o', '0') }} {{ true | replace(true, 'x') }}
{{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ mapping | reverse | list }} {{ range(3) | reverse | list }} {{ (1, 2) | reverse | list }} {{ mapping.items() | reverse | list }}
{{ 2.567 | round }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 42 | round }} {{ 42.55 | round(1, 'floor') }} {{ 1234 | round(-2) }} {{ 2.675 | round(2) }} {{ 0.5 | round | int }} {{ 1.005 | round(2) }} {{ 1234.5 | round(-2) }} {{ true | round }} {{ -2.5 | round }} {{ 1e20 | round }}
{{ 2.5 | round(1, 'up') }}
{{ numbers | select('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ words | select('equalto', 'fig') | list }} {{ numbers | select('greaterthan', 1) | list }} {{ numbers | select('divisibleby', 3) | list }} {{ [1, undefined_name] | select('defined') | list }} {{ mixed | select('string') | list }} {{ mixed | select('number') | list }} {{ words | select('in', ['fig', 'pear']) | list }} {{ numbers | select('>', 1) | list }} {{ numbers | select('ne', 1) | first }}
{{ people | selectattr('admin') | map(attribute='name') | list }} {{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }} {{ people | selectattr('admin', 'defined') | list | length }} {{ people | selectattr('city', 'in', ['Oslo']) | list | length }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ (messages | selectattr('role', '==', 'system') | first).content }} {{ nested.list | selectattr('x', '>', 1) | list }} {{ people | selectattr('tags.0', 'defined') | list | length }} {{ people | selectattr('age', 'eq', 25) | first }} {{ messages | selectattr('tool_calls', 'undefined') | list | length }} {{ (messages | selectattr('role', 'eq', 'user') | list)[-1].content }}
{{ numbers | select('unknown') | list }}
{{ [1, 2, 3, 4, 5] | slice(2) | list }} {{ [1, 2, 3] | slice(2, 'x') | list }} {{ 'abcde' | slice(3) | list }} {{ [1] | slice(3) | list }}
{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }} {{ numbers | sort(true) }} {{ 'bca' | sort }} {{ mapping | sort }} {{ people | sort(attribute='name') | map(attribute='name') | join }} {{ [[2, 'a'], [1, 'b']] | sort }} {{ people | sort(false, true, 'city') | map(attribute='city') | list }} {{ [true, 0, 2] | sort }} {{ [2.5, 1] | sort }} {{ nested.list | sort(attribute='x', reverse=true) | first }} {{ people | sort(reverse=true, attribute='age') | map(attribute='name') | list }}
{{ [1, 'a'] | sort }}
{{ [none, 1] | sort }}
{{ people | sort }}
{{ 5 | string }} {{ none | string }} {{ true | string }} {{ [1, 'a'] | string }} {{ 1e20 | string }} {{ 'a' | string }} {{ 1.0 | string | length }} {{ undefined_name | string }}|
{{ '<p>a  <b>b</b></p> &amp; <!-- c -->d' | striptags }} {{ 5 | striptags }}
{{ numbers | sum }} {{ [] | sum }} {{ people | sum(attribute='age') }} {{ numbers | sum(start=10) }} {{ [1.5, 2] | sum }} {{ [true, 1] | sum }} {{ [0.1, 0.2, 0.3] | sum }} {{ people | sum('age', 5) }}
{{ ['a', 'b'] | sum }}
{{ ['a', 'b'] | sum(start='') }}
{{ "hello wORLD it's a-b (c) x_y" | title }} {{ 5 | title }} {{ 'ÉA ñB' | title }} {{ '3rd <b>' | title }}
{{ '  a ' | trim }}| {{ 'xax' | trim('x') }} {{ 5 | trim }} {{ none | trim }} {{ spaces | trim }}| {{ 'xax' | trim(chars='x') }} {{ '\u200ba' | trim | length }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '...', 0) }} {{ 'abc' | truncate(2, true, '') }} {{ 'foo bar' | truncate(5, end='…', leeway=0) }} {{ 'x' | truncate }}
{{ words | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ 'abca' | unique | list }} {{ [] | unique | list }}
{{ 'abc é ß' | upper }} {{ 5 | upper }} {{ none | upper }} {{ [1, 'a'] | upper }}
{{ 'a b&c/é?' | urlencode }} {{ {'a': 1, 'b c': 'd&e'} | urlencode }} {{ [('a', 1)] | urlencode }} {{ 5 | urlencode }}
{{ 'see http://a.b/c and www.x.org' | urlize }}
{{ 'one two three' | wordcount }} {{ '' | wordcount }} {{ "it's a-b" | wordcount }} {{ 'é日本 x_y' | wordcount }}
{{ 'The quick brown fox jumps' | wordwrap(10) }} {{ 'abcdefghijkl mn' | wordwrap(5) }} {{ 'abcdefghijkl' | wordwrap(5, false) }} {{ 'a b c d' | wordwrap(3, wrapstring='|') }} {{ 'a\nb c d e' | wordwrap(3) }} {{ 'well-known fact' | wordwrap(6, break_on_hyphens=false) }} {{ 'well-known fact' | wordwrap(6) }}
{{ {'class': 'a', 'id': none, 'x': 1, 'y': 'a"b'} | xmlattr }}| {{ {'a': 1} | xmlattr(false) }} {{ {} | xmlattr }}|
{{ [1] | random }} {{ 'a' | random }}
{{ text | unknown_filter }}
{{ 'a' | upper('x') }}
{{ 'a' | replace }}
{{ lines | lines }}
{{ 'a,b' | split(',') }}
{{ 'a' | bool }}
{{ [1] | zip([2]) }}
{{ [1] | chain([2]) }}
{{ 'x' | upper | lower | length }} {{ ('a' | upper) ~ 'b' }} {{ 'a' ~ 'b' | upper }} {{ -1 | abs }} {{ (1 + 2) | string ~ 'x' }} {{ 1 + 2 | string | int }} {{ not [] | length }}
{% filter upper %}a {{ 'b' }} c{% endfilter %} {% filter replace('a', 'x') | upper %}banana{% endfilter %} {% filter trim %}  x {% endfilter %}|
"""

JSON = r"""
{{ 'é<>&\'"\\/\n\t\x07\x7f\u2028😀' | tojson }} {{ none | tojson }} {{ true | tojson }} {{ 1 | tojson }} {{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ 1e-7 | tojson }} {{ 1e16 | tojson }} {{ 0.1 | tojson }} {{ -0.0 | tojson }}
{{ huge | tojson }} {{ large | tojson }} {{ 123456789012345678901234567890 | tojson }} {{ big | tojson }} {{ whole | tojson }} {{ [1.0, 2.5e-10, 1e300] | tojson }}
{{ [] | tojson }} {{ {} | tojson }} {{ [[], {}] | tojson }} {{ (1, 2) | tojson }} {{ mixed | tojson }} {{ nested | tojson }}
{{ tools | tojson }}
{{ tools[0] | tojson(indent=2) }}
{{ tools[0] | tojson(indent=4) }}
{{ mapping | tojson(indent=0) }} {{ [] | tojson(indent=2) }} {{ {'a': []} | tojson(indent=1) }} {{ {'a': {}} | tojson(indent=2) }} {{ [1, [2]] | tojson(indent='--') }} {{ [1] | tojson(indent='\t') }} {{ [1] | tojson(indent=none) }} {{ [1] | tojson(indent=-1) }} {{ [1] | tojson(indent=true) }}
{{ mapping | tojson(separators=(',', ':')) }} {{ {'a': [1, 2]} | tojson(separators=(', ', ' : ')) }} {{ {'a': [1, 2]} | tojson(separators=[',', ':']) }} {{ [1, 2] | tojson(separators=none) }} {{ {'a': [1, 2]} | tojson(indent=2, separators=(',', ':')) }} {{ {'a': [1, {}]} | tojson(indent=2, separators=(' ,', ' = ')) }}
{{ mapping | tojson(sort_keys=true) }} {{ {'b': {'d': 1, 'c': 2}, 'a': [ {'z': 1, 'y': 2} ]} | tojson(sort_keys=True) }} {{ tools[0] | tojson(indent=2, sort_keys=true) }} {{ {'é': 1, 'z': 2, 'Z': 3} | tojson(sort_keys=true, separators=(',', ':')) }} {{ {10: 1, 9: 2} | tojson(sort_keys=true) }}
{{ 'é😀\u2028\x7f' | tojson(ensure_ascii=true) }} {{ 'é' | tojson(ensure_ascii=false) }} {{ {'é': 'ü'} | tojson(ensure_ascii=true, sort_keys=true) }} {{ 'é' | tojson(true) }} {{ mapping | tojson(false, 1) }} {{ mapping | tojson(false, none, (',', ':'), true) }}
{{ {2: 'a', none: 'b', true: 'c', 2.5: 'd', 1e20: 'e'} | tojson }} {{ {'a': none, 'b': true} | tojson }} {{ {false: 1} | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ {'b': 1, 2: 3} | tojson(sort_keys=true) }}
{{ undefined_name | tojson }}
{{ [undefined_name] | tojson }}
{{ mapping.keys() | tojson }}
{{ range(3) | tojson }}
{{ 1 | tojson(colour=3) }}
{{ [1, 2] | tojson(separators=',') }}
{{ [1, 2] | tojson(separators=(',',)) }}
{{ [1, 2] | tojson(separators=5) }}
{{ namespace(a=1) | tojson }}
{{ (1e308 * 10) | tojson }} {{ ((1e308 * 10) - (1e308 * 10)) | tojson }}
{{ messages[2].tool_calls[0].function.arguments | tojson }} {{ messages[2].tool_calls[1].function.arguments | tojson }} {{ messages[2].tool_calls[0].function | tojson(indent=2) }} {{ (tools | tojson(indent=2)).split('\n') | length }} {{ (mapping | tojson) ~ '\n' }} {{ mapping | tojson | length }} {{ mapping | tojson | upper }}
{{ '{"a":' ~ 1 | tojson ~ '}' }} {{ ('a' ~ 'b') | tojson }} {{ 'a"b' | tojson | tojson }} {{ [1, 2] | tojson | replace(' ', '') }} {{ ('<' | e) | tojson }} {{ mapping.items() | list | tojson }} {{ mapping | dictsort | tojson }} {{ 'a' | list | tojson }} {{ [1, 2, 3][1:] | tojson }} {{ ([1] + [2]) | tojson }} {{ range(3) | list | tojson }}
"""

TESTS = r"""
{{ true is boolean }} {{ 1 is boolean }} {{ none is boolean }} {{ no is boolean }}
{{ range is callable }} {{ 1 is callable }} {{ text.upper is callable }} {{ 'a' is callable }}
{{ text is defined }} {{ undefined_name is defined }} {{ undefined_name is not defined }} {{ none is defined }} {{ mapping.zzz is defined }} {{ mapping['a'] is defined }} {{ numbers[9] is defined }} {{ undefined_name is undefined }} {{ messages[0].tool_calls is defined }} {{ text.x is defined }} {{ nothing.x is defined }}
{{ undefined_name.x is defined }}
{{ 6 is divisibleby 3 }} {{ 7 is divisibleby(3) }} {{ 7 is not divisibleby 3 }}
{{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 'a' is eq('a') }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 2 is ge 2 }} {{ 1 is lt 2 }} {{ 1 is le 1 }} {{ 2 is greaterthan 1 }} {{ 1 is lessthan 2 }}
{{ ('<' | e) is escaped }} {{ '<' is escaped }}
{{ 2 is even }} {{ 3 is odd }} {{ 3 is even }} {{ negative is odd }} {{ 2.0 is even }}
{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ none is false }} {{ 'a' is true }}
{{ 'upper' is filter }} {{ 'zzz' is filter }} {{ 'odd' is test }} {{ 'zzz' is test }}
{{ 1.0 is float }} {{ 1 is float }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is integer }} {{ '1' is integer }} {{ huge is integer }}
{{ 1 is in [1, 2] }} {{ 'a' is in 'abc' }} {{ 'a' is in mapping }} {{ 3 is not in [1] }}
{{ [1] is iterable }} {{ 'a' is iterable }} {{ mapping is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ undefined_name is iterable }} {{ range(3) is iterable }}
{{ 'abc' is lower }} {{ 'aBc' is lower }} {{ 'ABC' is upper }} {{ '1' is upper }} {{ 'a1' is lower }}
{{ mapping is mapping }} {{ [] is mapping }} {{ {} is mapping }} {{ 'a' is mapping }} {{ none is mapping }} {{ undefined_name is mapping }} {{ namespace() is mapping }}
{{ none is none }} {{ nothing is none }} {{ 0 is none }} {{ undefined_name is none }} {{ nothing is not none }} {{ none is None }}
{{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ '1' is number }} {{ none is number }}
{{ none is sameas none }} {{ true is sameas true }} {{ 1 is sameas true }} {{ mapping is sameas mapping }} {{ no is sameas(false) }} {{ nothing is sameas none }} {{ enable_thinking is sameas false }}
{{ [1] is sequence }} {{ 'a' is sequence }} {{ (1,) is sequence }} {{ mapping is sequence }} {{ 1 is sequence }} {{ none is sequence }} {{ undefined_name is sequence }} {{ range(3) is sequence }} {{ messages[0].content is sequence }}
{{ 'a' is string }} {{ 1 is string }} {{ none is string }} {{ [] is string }} {{ undefined_name is string }} {{ ('a' | safe) is string }} {{ messages[0].content is string }}
{{ 1 is unknown_test }}
{{ messages[0].content is string and messages[0].content is not mapping }} {{ not messages[0].content is mapping }} {{ text is string and not text is none }} {{ 1 is not none and 2 is not none }} {{ (text is defined) and text }}
{{ mapping is mapping and mapping.a is defined and mapping.a == 1 }} {{ 'x' if undefined_name is defined and undefined_name.y else 'z' }} {{ enable_thinking is defined and enable_thinking is false }}
{{ mapping.a is not string }} {{ words | select('lower') | list }} {{ words | reject('string') | list }} {{ 5 is divisibleby 0 }}
"""

STATEMENTS = r"""
{% if 1 %}a{% endif %}{% if 0 %}b{% elif 1 %}c{% else %}d{% endif %}{% if '' %}e{% else %}f{% endif %}
{% if messages and messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ rest | length }}
{% for n in numbers %}{{ n }}{% if not loop.last %},{% endif %}{% endfor %}
{% for n in [] %}x{% else %}empty{% endfor %} {% for n in undefined_name %}x{% else %}none{% endfor %}
{% for n in none %}x{% else %}none{% endfor %}
{% for n in 5 %}x{% endfor %}
{% for k, v in mapping.items() %}{{ k }}={{ v }} {% endfor %} {% for k in mapping %}{{ k }}{% endfor %} {% for k, v in mapping | dictsort %}{{ k }}{{ v }}{% endfor %} {% for c in 'abc' %}{{ c }}-{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for a, b in [[1, 2]] %}{{ a + b }}{% endfor %}
{% for a, b in [[1, 2, 3]] %}x{% endfor %}
{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}
{% for n in numbers if n > 1 %}{{ loop.index }}/{{ loop.length }}:{{ n }} {% else %}no{% endfor %} {% for p in people if p.admin is defined %}{{ p.name }}{% endfor %} {% for n in numbers if n > 5 %}x{% else %}no{% endfor %}
{% for n in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for n in numbers %}{{ loop.cycle('odd', 'even') }} {{ loop.depth }}{{ loop.depth0 }} {{ loop.previtem }}<{{ loop.nextitem }} {% endfor %}
{% for n in [1, 1, 2] %}{{ loop.changed(n) }} {% endfor %} {% for m in messages %}{% if loop.changed(m.role) %}{{ m.role }} {% endif %}{% endfor %}
{% for n in numbers %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %} {% for m in messages %}{% if not loop.first and loop.previtem.role != 'user' %}{{ loop.index0 }}{% endif %}{% endfor %}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %} {% for a in [1, 2] %}{% set outer = loop %}{% for b in [3] %}{{ outer.index }}{{ loop.depth }}{% endfor %}{% endfor %}
{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}
{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %} {% for n in range(3) %}{% break %}{% else %}never{% endfor %}|
{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(1, 4) %}{{ i }}{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {{ range(0) | list }} {{ range(3) }} {{ range(1, 10, 3) | list }}
{{ range(1, 4) | sum }} {{ range(3) | join(',') }} {{ 2 in range(3) }} {{ range(messages | length)[-1] }} {{ range(5) | last }} {{ range(2, 0) | list }} {{ (range(3) | list)[::-1] }} {{ [1, 2] == range(1, 3) | list }}
{% for i in range(messages | length - 1, -1, -1) %}{{ i }}{% endfor %} {% for m in messages | reverse %}{{ m.role[0] }}{% endfor %} {% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %} {% for m in messages[1:] %}{{ loop.index0 }}{% endfor %}
{% set x = 1 %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set y = 'a' if x else 'b' %}{{ y }} {% set z = [1, 2] %}{{ z[1] }} {% set t = 1, 2 %}{{ t }} {% set a, b = b, a %}{{ a }}{{ b }}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(x=0, found=false) %}{% for n in numbers %}{% set ns.x = ns.x + n %}{% if n == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.x }}{{ ns.found }} {% set ns = namespace() %}{% set ns.new = 1 %}{{ ns.new }}{{ ns.other }}|
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }} {{ ns['a'] }} {% set ns.list = [] %}{% set ns.list = ns.list + [1] %}{{ ns.list }} {% set ns.a = ns.a ~ 'x' %}{{ ns.a }}
{% set ns = namespace(items=1, get=2) %}{{ ns.items }}{{ ns.get }}
{% set ns = namespace(_x=1) %}{{ ns._x }}
{% set mapping.a = 5 %}
{% set mapping['a'] = 5 %}
{% set block %}a{{ 1 + 1 }}b{% endset %}{{ block }} {% set block | upper %}abc{% endset %}{{ block }} {% set b2 %}{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ b2 | length }} {% set b3 | trim | replace('a', 'b') %} a {% endset %}{{ b3 }} {{ block is string }}
{% with %}{% set inner = 1 %}{{ inner }}{% endwith %}{{ inner }}| {% with a = 1, b = 2 %}{{ a + b }}{% endwith %} {% with a = 5 %}{% with b = a %}{{ b }}{% endwith %}{% endwith %}
{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(b=3, a=4) }} {{ m() }} {{ m(none) }} {{ m('a' ~ 'b') | upper }} {{ m(1, b=2) | length }} {{ m(1) ~ m(2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {% macro d(x=[]) %}{{ x | length }}{% endmacro %}{{ d() }}{{ d([1]) }} {% macro e() %}{% endmacro %}{{ e() }}|
{% macro m(x='d', y=none) %}{{ x }}|{{ y }}{% endmacro %}{{ m(undefined_name) }} {{ m(y=undefined_name) }} {{ m(x=none) }} {{ m('', '') }}
{% macro m(a, b=a ~ '!', c=b if a else [a, b], d=c or b) %}{{ a }}{{ b }}{{ c }}{{ d }}{% endmacro %}{{ m(1) }} {{ m('', c=0) }} {{ m(1, 2, 3, 4) }} {{ m() }}
{% macro m(a, b='x') %}{{ caller(a, *varargs) }}{{ kwargs | dictsort }}{% endmacro %}{% call(x, y='-', z=y) m(1, 2, 3, k=4) %}{{ x }}{{ y }}{{ z }}{% endcall %}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}
{% macro m() %}{{ varargs | join(',') }}|{% for k, v in kwargs.items() %}{{ k }}={{ v }}{% endfor %}{% endmacro %}{{ m(1, 2) }} {{ m(x=1) }} {{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, x=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a, b=2) %}x{% endmacro %}{{ m.name }}{{ m.caller }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{% endcall %} {% macro n() %}{{ caller('a', 1) }}{% endmacro %}{% call(x, y) n() %}{{ x }}-{{ y }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }} {% call m() %}b{% endcall %}
{% macro outer(list) %}{% for i in list %}{% if i is iterable %}[{{ outer(i) }}]{% else %}{{ i }}{% endif %}{% endfor %}{% endmacro %}{{ outer([1, [2, [3]]]) }} {% macro f(n) %}{{ 1 if n == 0 else n * f(n - 1) | int }}{% endmacro %}{{ f(5) }}
{% macro p(properties, level=0) %}{% for k, v in properties.items() %}{{ '  ' * level }}{{ k }}{% if v is mapping %}:{{ p(v, level + 1) }}{% else %}={{ v }};{% endif %}{% endfor %}{% endmacro %}{{ p(nested) }}
{% set g = 'global' %}{% macro m() %}{{ g }}{{ text }}{% endmacro %}{{ m() }} {% macro a() %}A{% endmacro %}{% macro b() %}{{ a() }}B{% endmacro %}{{ b() }} {% for m in [1] %}{{ a() }}{% endfor %}
{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }} {% for f in [1] %}{% macro inner(v) %}{{ v }}{{ f }}{% endmacro %}{{ inner(2) }}{% endfor %}
{% raw %}{{ a }} {% if %}{% endraw %} {# comment #}|{#- trimmed -#} x {% raw -%}  y  {%- endraw %}|
{% block title %}block {{ text }}{% endblock %} {{ self.title() }}
{% block a scoped %}x{% endblock a %}
{% autoescape true %}{{ '<' }}{% endautoescape %}
{% autoescape false %}{{ '<' }}{% endautoescape %}
{% include 'other' %}
{% extends 'other' %}
{% import 'other' as o %}
{{ '{% generation %}' }}{# {% generation %} #}{% raw %}{% generation %}{% endraw %} {%- set raw = "it's {% raw %}" %}{{ raw }}
{% generation %}{{ 'x' }}{% endgeneration %} {%- generation -%} y {%- endgeneration -%} z
{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% set q = 1 %}{% endgeneration %}{% endif %}{% endfor %}
{% set q = 1 %}{% generation %}{% set q = 2 %}{{ q }}{% endgeneration %}{{ q }}
{% generation %}{% generation %}n{% endgeneration %}{% endgeneration %} {% for i in range(2) %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}
{% debug %}
{% trans %}x{% endtrans %}
{% unknown_statement %}
{% if %}x{% endif %}
{% for %}x{% endfor %}
{% endif %}
{% if 1 %}x
{{ 1 + }}
{{ }}
{{ a b }}
{{ 'a }}
{{ raise_exception('no ' ~ text) }}
{% if messages | length > 99 %}{{ raise_exception('x') }}{% endif %}ok
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%B %A %a %j %H:%M:%S %I %p %y %m %% %e') }} {{ strftime_now('%-d %-m %-H') }} {{ strftime_now('%F %T %D %R') }} {{ strftime_now('%c|%x|%X') }} {{ strftime_now('%U %W %u %w %G %V %g') }} {{ strftime_now('%h %n %t %C %k %l') }} {{ strftime_now('') }}| {{ strftime_now('day') }} {{ strftime_now('%f') }} {{ strftime_now('%z|%Z') }}
{{ cycler('a', 'b').next() }} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }} {% set j = joiner(', ') %}{% for n in numbers %}{{ j() }}{{ n }}{% endfor %}
{{ lipsum() | length > 0 }}
{{ debug() }}
{{ loop is defined }} {{ varargs is defined }} {{ caller is defined }} {{ range is defined }} {{ dict is defined }} {{ cycler is defined }} {{ joiner is defined }}
{{ loop.index }}
{% set ns = namespace(a=[1]) %}{% for m in messages %}{% set ns.a = ns.a + [loop.index] %}{% endfor %}{{ ns.a }}{{ ns.a | length }} {{ namespace(a=1).a }}
{% set messages = messages[1:] %}{{ messages[0].role }} {% set text = 'new' %}{{ text }} {% set loop_messages = messages %}{% for m in loop_messages %}{{ m.role[0] }}{% endfor %}
{% set add_generation_prompt = add_generation_prompt | default(false) %}{{ add_generation_prompt }} {% if tools is defined and tools %}{{ tools | length }}{% endif %} {{ documents is none }}
"""

# Combinations, limits and what rarely matters.
MORE = r"""
{{ messages | map(attribute='content') | map('length') | max }}
{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content | trim }}
{{ 'x'.join(['a']) ~ ['b'] | join }}
{{ text.split() | map('first') | join | upper }}
{{ text | list | groupby(0) | list | length }}
{{ [1,2,3] | map('multiply', 2) | list }}
{{ numbers | sort | map('string') | join('<') }}
{{ [3,1,2] | sort(reverse=True) | first }}
{{ words | map('length') | list | sum }}
{{ people | sum(attribute='age') / people | length }}
{{ (people | map(attribute='age') | sum) / (people | length) }}
{{ {'a': 1}.items() | map('join', '=') | join(',') }}
{{ dict(people | map(attribute='name') | map('lower') | list | batch(2) | first | list | batch(1) | map('join') | map('upper') | map('list')) if false else 'x' }}
{{ namespace(**{'a': 1}).a }}
{{ '%s' | format(1.0) }}
{{ '%.2f' | format(1) }}
{{ '%s %s' | format(*[1, 2]) }}
{{ "%-10s|%10s" | format('ab', 'cd') }}
{{ '%d items' % (messages | length) }}
{{ '%s' % messages[0] }}
{{ '%5.1f%%' % 99.5 }}
{{ '{:>10}'.format('x') }}
{{ '{:,}'.format(1234567.5) }}
{{ '{:.2e}'.format(12345.678) }}
{{ '{:08.3f}'.format(3.14159) }}
{{ '{:+d}'.format(5) }}
{{ '{:x}'.format(255) }}
{{ '{:#b}'.format(5) }}
{{ '{0:>{1}}'.format('x', 5) }}
{{ '{:10.3}|'.format('abcdef') }}
{{ '{:^10}|'.format(text[:3]) }}
{{ '{:5}'.format(none) }}
{{ '{:5}'.format([1]) }}
{{ '{:.0f}'.format(0.5) }} {{ '{:.0f}'.format(1.5) }} {{ '{:.1f}'.format(0.25) }}
{{ '{:5%}'.format(0.5) }}
{{ '{:e}'.format(0) }} {{ '{:g}'.format(0.00001) }} {{ '{:g}'.format(123456789) }} {{ '{:G}'.format(1e-10) }}
{{ '{:010}'.format(-5) }} {{ '{:=10}'.format(-5) }} {{ '{:<010}'.format(5) }} {{ '{: }'.format(5) }}
{{ '{:s}'.format(5) }}
{{ '{:,}'.format(-1234) }} {{ '{:_x}'.format(65535) }} {{ '{:,d}'.format(999) }} {{ '{:>+8,.1f}'.format(12345.67) }}
{{ '%+.3e' % 12345.6 }} {{ '%010.2f' % -3.14159 }} {{ '%-10d|' % 5 }} {{ '% 5d' % 5 }} {{ '%+5d' % 5 }} {{ '%#x' % 0 }} {{ '%#X' % 255 }} {{ '%.3d' % 5 }} {{ '%5.3d' % 5 }} {{ '%x' % 0 }} {{ '%o' % 64 }} {{ '%e' % 0 }} {{ '%g' % 1e6 }} {{ '%g' % 100000.5 }} {{ '%.10g' % 0.1 }} {{ '%s' % -0.0 }} {{ '%f' % 1e15 }} {{ '%.20f' % 0.1 }} {{ '%d' % -3.99 }} {{ '%5s' % none }} {{ '%-6s|' % true }} {{ '%r' % 'a' }} {{ '%r' % [1, 'b'] }} {{ '%5r|' % 'a' }} {{ '%ld' % 5 }} {{ '%c' % 'é' }} {{ '%c' % 128512 }}
{{ '%c' % 'ab' }}
{{ '%s %s' % ['a', 'b'] }}
{{ '%(a)s %(b)d' % dict(a='x', b=2) }} {{ '%(a)s%%' % {'a': 1} }} {{ '%(a)5.1f' % {'a': 2} }} {{ '%(a)s %(a)r' % {'a': 'q'} }}
{{ '%(a)s %s' % {'a': 1} }}
{{ '%s' % {'a': 1}.items() }}
{{ 'a' % 1 }}
{{ 'a' % {} }} {{ 'a' % [] }} {{ 'a' % {'x': 1} }}
{{ 'a' % ((),) }}
{{ text.find('quick', -12) }} {{ text.find('q', -100) }} {{ text.count('', 2, 4) }} {{ text.rfind('') }} {{ text.index('T') }} {{ ''.find('') }} {{ ''.count('') }} {{ 'abc'.rfind('', 1, 2) }} {{ 'abc'.find('', 3) }} {{ 'abc'.startswith('', 4) }} {{ 'abc'.startswith('', 3) }} {{ 'abc'.endswith('', 4) }} {{ 'abc'.count('', 4) }}
{{ 'aXbXc'.split('X', maxsplit=1) }} {{ 'aXbXc'.split('X', -1) }} {{ 'aXbXc'.rsplit('X', 0) }} {{ '  a  '.rsplit(none, 0) }} {{ '  a b '.rsplit(none, 1) }} {{ ' '.split() }} {{ ' '.split(' ') }} {{ '\u3000a\u3000b'.split() }} {{ 'a\x1cb'.split() }} {{ 'a\u200bb'.split() }}
{{ 'abc'.split(1) }}
{{ 'abc'.join() }}
{{ 'abc'.strip(1) }}
{{ 'a-b'.title() }} {{ "l'été".title() }} {{ 'ÀÉ'.lower() }} {{ 'straße'.upper() }} {{ 'İ'.lower() | length }} {{ 'ΟΔΟΣ'.lower() }} {{ 'ŉ'.upper() }} {{ 'ﬃ'.upper() }} {{ 'ss'.casefold() }} {{ 'ẞ'.casefold() }} {{ 'ǅ'.swapcase() }} {{ 'ΑΣ'.title() }} {{ 'ªb'.upper() }} {{ 'ⅷ'.upper() }} {{ 'ⓐ'.isupper() }} {{ 'Ⓐ'.isupper() }} {{ 'x²'.isalnum() }} {{ 'ñ'.isidentifier() }} {{ '\u0301'.isalpha() }} {{ '①'.isalnum() }} {{ 'ⅷ'.isalpha() }} {{ 'ⅷ'.isnumeric() }}
{{ 'ab\tc'.expandtabs(0) }} {{ 'a\r\tb'.expandtabs(3) }} {{ 'é\tb'.expandtabs(4) }}|
{{ 'abc'.center(2) }} {{ 'abc'.center(4) }}| {{ 'ab'.center(5) }}| {{ 'a'.center(4) }}| {{ ''.center(3, 'x') }} {{ 'é'.ljust(3, 'é') }} {{ 'a'.rjust(-5) }} {{ '-'.zfill(3) }} {{ ''.zfill(2) }} {{ '--1'.zfill(5) }} {{ '１'.zfill(3) }}
{{ 'a'.ljust(3, 'xy') }}
{{ 'a\n\nb\r\n\r\nc\rd'.splitlines() }} {{ 'a\n\nb\r\nc'.splitlines(True) }} {{ '\n'.splitlines() }} {{ 'a\x1db'.splitlines() }} {{ 'a\u2029b'.splitlines() }}
{{ 'a=b'.partition('=')[2] }} {{ 'abc'.rpartition('b') | join('|') }}
{{ 'a'.partition('') }}
{{ 'abcdef'[1:5:2] }} {{ 'abcdef'[-2::-2] }} {{ 'abcdef'[10::-1] }} {{ 'abcdef'[:-10:-1] }} {{ 'abcdef'[3:0:-1] }} {{ 'abcdef'[0:3:-1] }}| {{ 'abcdef'[none:2] }} {{ 'abcdef'[:none] }} {{ 'abcdef'[true:] }} {{ ''[::-1] }}| {{ [][::-1] }} {{ [1][5:] }} {{ [1, 2, 3][-5:-1] }} {{ [1, 2, 3][1:1] }} {{ (1, 2, 3)[-1:] }}
{{ 'abc'['1'] }}| {{ 'abc'[1.5] }}|
{{ 'abc'[1:'2'] }}
{{ 'abc'[1.0:] }}
{{ numbers[1:][0] }} {{ numbers[-1] + numbers[0] }} {{ numbers[numbers | length - 1] }} {{ numbers[loop_index | default(0)] }} {{ mapping['a' ~ ''] }} {{ mapping[words[0]] }}|
{{ [[1, 2], [3, 4]] | map('last') | list }} {{ [[3, 1], [2]] | map('sort') | map('first') | list }} {{ [[1], []] | map('length') | list }} {{ ['a-b', 'c'] | map('replace', '-', '+') | list }} {{ ['1', 'x'] | map('int', default=-1) | list }} {{ ['1.5', '2'] | map('float') | list }} {{ [1.256, 2.1] | map('round', 1) | list }} {{ [none, 'a'] | map('default', 'x', true) | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }} {{ ['ab', 'c'] | map('center', 4) | list }} {{ ['b', 'a'] | map('upper') | sort | list }} {{ [[1, 2]] | map('join', ',') | list }} {{ ['a,b'] | map('string') | list }} {{ [{'a': 1}] | map('items') | map('list') | list }} {{ [[1, 1]] | map('unique') | map('list') | list }} {{ ['x'] | map('tojson') | list }} {{ [{'b': 1, 'a': 2}] | map('tojson', sort_keys=true) | list }} {{ [{'b': 1}] | map('tojson', indent=1) | list }} {{ [{'a': 'z'}] | map('dictsort') | list }} {{ ['%s!'] | map('format', 'a') | list }} {{ [' a '] | map('trim') | map('upper') | first }} {{ [1, 2] | map('string') | map('length') | list }} {{ ['aB'] | map('lower') | list }} {{ ['ab cd'] | map('title') | list }} {{ ['ab cd'] | map('capitalize') | list }} {{ ['ab cd'] | map('wordcount') | list }} {{ ['a'] | map('e') | list }} {{ [[1, 2, 3]] | map('batch', 2) | map('list') | list }} {{ [-1] | map('abs') | list }} {{ ['abc'] | map('reverse') | list }} {{ ['a\nb'] | map('indent', 2) | list }} {{ [[2, 3]] | map('sum') | list }} {{ ['abcdefghij'] | map('truncate', 5, true, '') | list }} {{ ['a'] | map('list') | list }} {{ [[1, 2]] | map('max') | list }}
{{ numbers | select('gt', 1) | list }} {{ numbers | select('le', 2) | list }} {{ numbers | reject('even') | list }} {{ ['a', 1] | select('string') | list }} {{ [[], [1]] | select | list }} {{ [none, 1] | reject('none') | list }} {{ [1, 2] | select('in', (1, 3)) | list }} {{ ['a', 'B'] | select('upper') | list }} {{ [{'a': 1}, [1]] | select('mapping') | list }} {{ [true, 1] | select('boolean') | list }} {{ [1, 1.5] | select('float') | list }} {{ [1, 1.5, true] | select('integer') | list }} {{ ['', none, 0] | select('defined') | list }} {{ [1, true] | select('sameas', true) | list }} {{ [3, 6] | select('divisibleby', 3) | list | length }} {{ [true, false] | select('true') | list }} {{ ['ab'] | select('sequence') | list }} {{ [1, 'a'] | select('iterable') | list }} {{ [1] | select('callable') | list }} {{ [1, 2] | select('ne', 1) | list }} {{ [1] | select('lt', 2) | list }} {{ ['x'] | select('eq', 'x') | list }}
{{ people | selectattr('age', '>=', 30) | map(attribute='name') | join }} {{ people | selectattr('age', '!=', 30) | list | length }} {{ people | selectattr('tags') | list | length }} {{ people | rejectattr('tags') | list | length }} {{ people | selectattr('name', 'in', 'Annbob') | list | length }} {{ people | selectattr('city', 'lower') | map(attribute='city') | list }} {{ people | selectattr('name', 'string') | list | length }} {{ people | selectattr('admin', 'true') | list | length }} {{ people | selectattr('admin', 'sameas', true) | list | length }} {{ nested | dictsort | map('first') | list }} {{ people | map(attribute='name') | select('in', ['Ann']) | list }} {{ people | rejectattr('admin', 'undefined') | list | length }} {{ people | selectattr('age', 'odd') | list | length }} {{ tools | selectattr('function.name', 'equalto', 'clock') | list | length }} {{ tools | selectattr('function.description') | list | length }}
{{ people | selectattr('age.x') | list }}
{{ people | selectattr('zzz.x', 'defined') | list }}
{{ people | map(attribute='zzz.x') | list }}
{{ people | sort(attribute='zzz') | list | length }}
{{ people | groupby('zzz') | list | length }}
{{ people | groupby('age') | map(attribute='grouper') | list }} {{ people | groupby('age') | map(attribute=1) | map('length') | list }} {{ (people | groupby('age'))[0][0] }} {{ (people | groupby('age') | first).list[0].name }} {{ people | groupby('age') | list | length }} {{ (people | groupby('age'))[0] | length }} {{ [{'a': 'x'}, {'a': 'X'}, {'a': 'x'}] | groupby('a') | map('first') | list }} {% for k, g in messages | groupby('role') %}{{ k }}{{ g | length }};{% endfor %}
{{ people | groupby('age') }}
{{ 10 | float | string }} {{ 1e3 | int }} {{ '12.7' | float | int }} {{ '0x1F' | int(base=16) }} {{ 'z' | int(base=36) }} {{ '-0x1f' | int(base=16) }} {{ '+5' | int }} {{ '5.' | float }} {{ '.5' | float }} {{ '1e400' | float }} {{ '-inf' | float }} {{ 'infinity' | float }} {{ '' | int }} {{ '' | float }} {{ '1__0' | int }} {{ '_1' | int }} {{ '1e2' | int }} {{ 'inf' | int }} {{ 'nan' | int }} {{ '１２' | int }} {{ 3.99 | int }} {{ -3.99 | int }} {{ false | int }} {{ '12abc' | int(7) }} {{ [] | float }} {{ {} | int }} {{ none | float(1) }} {{ '1 2' | int }} {{ '\n3\t' | int }} {{ huge | int }} {{ huge | float }} {{ '99999999999999999999' | int }}
{{ 'x' | int(base=0) }}
{{ 'x' | int(base=99) }}
{{ 1.5 | round }} {{ 0.5 | round }} {{ 1.25 | round(1) }} {{ -1.5 | round }} {{ 2.5 | round(0, 'ceil') }} {{ 5 | round(1, 'ceil') }} {{ 5 | round(method='floor') }} {{ 15 | round(-1) }} {{ 25 | round(-1) }} {{ -15 | round(-1) }} {{ 123.456 | round(-1) }} {{ 1e300 | round(2) }} {{ 0.1 | round(20) }} {{ 3.14159 | round(3) | string }} {{ 2 | round | string }} {{ 1e-5 | round(2) }} {{ 99.995 | round(2) }} {{ 123.456 | round(-2, 'floor') }} {{ 123.456 | round(1, 'ceil') }}
{{ 'a' | round }}
{{ 'a' | abs }}
{{ none | abs }}
{{ [1, [2, [3, none]]] | string }} {{ {'a': 'b'} | string | length }} {{ ('a', 1) | string }} {{ 'a' | string | upper }} {{ true | string | lower }} {{ 1.50 | string }}
{{ [1, 2, 3] | join(', ') | replace(', ', ';') }} {{ [['a', 1], ['b', 2]] | map('join', '=') | join('&') }} {{ 'abc' | join(',') | upper }} {{ range(5) | join }} {{ (1, 'b') | join('/') }} {{ [true, none] | join('|') }} {{ {'a': 1, 'b': 2} | join(',') }} {{ [1.0, 1e20] | join(' ') }} {{ people | map(attribute='tags') | map('join', '.') | join(';') }}
{{ 'abc' | batch(2) | map('join') | join('-') }} {{ range(7) | batch(3, '-') | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, '-') | list }} {{ mapping | batch(2) | list }}
{{ [1, 2] | batch(0) | list }}
{{ 'hello world' | capitalize }} {{ 'HELLO' | title }} {{ "o'neil mc-donald" | title }} {{ 'a.b c/d' | title }} {{ '  x' | capitalize }} {{ 'éa' | title }} {{ 'ﬁx' | title }} {{ 'ßx' | capitalize }}
{{ 'a b c d e f' | truncate(5, leeway=0) }} {{ 'abcdefgh' | truncate(5, leeway=0) }} {{ 'a b' | truncate(3, leeway=0) }} {{ 'éééééé ééé' | truncate(7, false, '…', 0) }}
{{ 'abc' | truncate(2) }}
{{ 'abcdefghijk' | truncate(2) }}
{{ 'one\ntwo' | indent }} {{ 'one\n\n\ntwo\n' | indent(2, true, true) }} {{ '\n' | indent(2, true) }}| {{ 'a' | indent(3, true) }} {{ 'a\x0bb' | indent(1) }} {{ 'x\ny' | indent('\t') }} {{ 'x\ny' | indent(width='- ', first=true) }} {{ 5 | indent(1, true) }} {{ 'a\nb' | indent(0) }} {{ 'a\nb' | indent(-1) }}
{{ [3, 3.0, '3'] | unique | list }} {{ ['A', 'a', 'b'] | unique | list }}
{{ ['b', 'A', 'a', 'B'] | sort }} {{ ['b', 'A', 'a', 'B'] | sort(reverse=true) }} {{ [(2, 'x'), (1, 'y')] | sort }} {{ {'x': 1, 'a': 2} | sort | join }} {{ [0.5, 1, true, false] | sort }} {{ [[2], [1, 5]] | sort }} {{ ['é', 'z', 'a'] | sort }} {{ people | sort(attribute='age,name', reverse=true) | map(attribute='name') | list }} {{ [[1, 'b'], [0, 'a']] | sort(attribute=1) }} {{ [[1, 'b'], [0, 'a']] | sort(attribute='0') }} {{ 'hello' | sort | unique | join }} {{ [none] | sort }} {{ [] | sort }} {{ [{'a': 1}] | sort | length }}
{{ mapping | dictsort(by='value') | first }} {{ {'b': 'x', 'a': none} | dictsort }} {{ {2: 'x', 1: 'y'} | dictsort }} {{ {'B': 1, 'a': 2} | dictsort | list }} {{ {'B': 1, 'a': 2} | dictsort(true) }} {{ {'x': [2], 'y': [1]} | dictsort(by='value') }}
{{ {'a': 1, 2: 3} | dictsort }}
{{ {'b': none, 'a': 1} | dictsort(by='value') }}
{{ mapping | dictsort(by='x') }}
{{ 1 | tojson(indent=2) }} {{ 'a' | tojson(separators=(',', ':')) }} {{ {'a': {'b': [1, {'c': none}]}} | tojson(indent=3) }} {{ [[]] | tojson(indent=2) }} {{ [{}] | tojson(indent=2) }} {{ {'a/b': '</script>'} | tojson }} {{ '\ud7ff\ue000' | tojson }} {{ '\x00\x1f\x80\u00a0' | tojson }} {{ '\x00\x1f\x80\u00a0' | tojson(ensure_ascii=true) }} {{ [1.10, 1e5, 1e15, 1e16, 123456789.123456789, 5e-324, 1.7976931348623157e308] | tojson }} {{ [0.1, 1/3, 2/3, 100.0, 1e22, 1e21] | tojson }} {{ {'k': (1, 2)} | tojson }} {{ -1 | tojson }} {{ true | tojson(indent=2) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true, indent=1, separators=(',', ':')) }} {{ {'a': 1}.items() | list | tojson }} {{ people | tojson(indent=2) | length }} {{ messages | tojson | length }} {{ tools | tojson(indent=4, sort_keys=true, ensure_ascii=true) }} {{ {1: 2} | tojson }} {{ {1.5: 2} | tojson(sort_keys=true) }} {{ {'a': 1} | tojson(separators=('', '')) }} {{ [1, 2] | tojson(separators=('\n', 5)) }}
{{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ 1e308 * 10 - 1e308 * 10 }} {{ [1e308 * 10] }} {{ 1e22 }} {{ 1e21 }} {{ 123456789012345.6 }} {{ 1234567890123456.7 }} {{ 12345678901234567.8 }} {{ 0.00012345 }} {{ 0.000012345 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 100.0 }} {{ 1e2 }} {{ 3.0 * 2 }} {{ 1 / 3 }} {{ 2 / 3 }} {{ 10 / 5 }} {{ 1e16 + 1 }} {{ 2 ** 0.5 }} {{ 2.0 ** 3 }} {{ 4 ** 0.5 }} {{ (-8) ** 3 }} {{ 0 ** 0 }} {{ 7 // 2.0 }} {{ -7 // 2 }} {{ 7 % 2.5 }} {{ -1 % 3 }} {{ 5 % -3 }} {{ -5.5 % 2 }} {{ 1 - 0.9 }} {{ 1.1 + 2.2 }} {{ 3 * 1.1 }} {{ 1e3 }} {{ 9007199254740993 }} {{ -9223372036854775808 }} {{ 9223372036854775807 + 1 }} {{ 1 + true }} {{ 1 - true }} {{ true / 2 }} {{ -true }} {{ 5 // true }} {{ 2 ** true }} {{ not 1.0 }} {{ 1.0 == 1 }} {{ 0.1 + 0.2 == 0.3 }} {{ 1 <= 1.0 < 2 }}
{{ (-8) ** 0.5 }}
{{ 'a' == 'a' }} {{ 'a' == "a" }} {{ 'é' == '\u00e9' }} {{ [1, 'a'] == [1, 'a'] }} {{ {} == {} }} {{ [] == () }} {{ none == none }} {{ none == 0 }} {{ '' == none }} {{ false == 0 }} {{ '' == false }} {{ [] == false }} {{ 1 == '1' }} {{ (1, 2) == (1, 2) }} {{ 'a' < 'B' }} {{ '10' < '9' }} {{ [1, 2] > [1] }} {{ 'a' != none }} {{ 1 != 1.0 }} {{ true == 1 }} {{ {'a': 1} != {'a': 1.0} }} {{ range(3) == range(3) }} {{ mapping.keys() | list == ['b', 'a', 'C'] }} {{ messages[0] == messages[0] }} {{ messages[0].role == 'system' == true }}
{{ 'a' in ['a', 'b'] and 'c' not in ['a'] }} {{ 'a' in ('a',) }} {{ 'b' in {'b': none} }} {{ none in [1, none] }} {{ '' in '' }} {{ 'é' in 'caf\u00e9' }} {{ 'ab' in 'cabd' }} {{ 1 in {1: 2} }} {{ 1.0 in {1: 2} }} {{ [1] in [[1]] }} {{ {'a': 1} in [{'a': 1}] }} {{ 'x' in mapping.values() }} {{ ('a', 1) in mapping.items() }} {{ 5 in range(10) }} {{ 'ro' in messages[0] }} {{ 'a' in words | map('lower') }} {{ 'role' in messages[0].keys() }} {{ not 'x' in 'xyz' }} {{ 'x' not in 'xyz' }} {{ true in [1] }} {{ 'A' in 'abc' | upper }} {{ 'a' in 'abc' and 'yes' or 'no' }}
{{ 'a' in 5 }}
{{ 'a' in true }}
{{ {'a': [1, {'b': (2, 3)}]}.a[1].b[0] }} {{ {'a b': 1}['a b'] }} {{ {'a': none}.a is none }} {{ {'a': none}.get('a', 'x') }} {{ {}.get('x') is none }} {{ {'x': 1}.get('x') + 1 }} {{ {'get': 5}.get('get') }} {{ {'keys': 1}['keys'] }} {{ {'items': [1]}['items'] }} {{ {'items': [1]}.items() | list }} {{ {1: 'a', 'b': 2}.keys() | list }} {{ ({'a': 1}.items() | list)[0][1] }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1} | length }} {{ {'a': 1}.a + 1 }} {{ {'n': 1}.n is defined }} {{ {'a': 1}.copy().a }} {{ {('a', 'b'): 1}[('a', 'b')] }} {{ {'values': 1}.values() | list }} {{ {'x': {}}.x.y is defined }} {{ {"k": "v"}.items() | first | join('=') }} {{ dict(a=1).a }} {{ dict({'a': 1}, **{'b': 2}) }} {{ dict([['a', 1]]) }} {{ {'a': 1, 'b': 2}.values() | sum }} {{ {'a': 1} | first }} {{ {'a': 2, 'b': 1} | max }} {{ {'a': 1}.pop is callable }}
{{ dict(1) }}
{{ {'a': 1}.get() }}
{{ {'a': 1}.keys(1) }}
{{ [1, 2].index(3) }}
{{ [1, 2, 3].index(3, 0, 2) }}
{{ (1, 2).copy() }}
{{ [1].count() }}
{{ [1, 2].get(0) }}
{{ text() }}
{{ messages[0]() }}
{{ none() }}
{{ 5() }}
{{ text.foo() }}
{{ messages.foo }}| {{ messages.0.role }} {{ messages[0]['role'][0] }} {{ text.0 }} {{ numbers.1 }} {{ messages.length }}| {{ 5 .x }}| {{ true.x }}| {{ none.x }}|
{{ messages['foo'] }}| {{ messages[99] }}| {{ none[0] }}| {{ 5[0] }}| {{ 'a'[0][0][0] }}
{{ messages[99].role }}
{{ undefined_name + 1 }}
{{ undefined_name * 2 }}
{{ undefined_name % 2 }}
{{ -undefined_name }}
{{ undefined_name.foo.bar }}
{{ undefined_name | upper }}| {{ undefined_name | trim }}| {{ undefined_name | length }} {{ undefined_name | list }} {{ undefined_name | join(',') }}| {{ undefined_name | first }}| {{ undefined_name | last }}| {{ undefined_name | string }}| {{ undefined_name | sort }} {{ undefined_name | unique | list }} {{ undefined_name | select | list }} {{ undefined_name | sum }} {{ undefined_name | max }}| {{ undefined_name | replace('a', 'b') }}| {{ undefined_name | title }}| {{ undefined_name | e }}| {{ undefined_name | safe }}| {{ undefined_name | reverse | list }} {{ undefined_name | batch(2) | list }} {{ undefined_name | wordcount }} {{ undefined_name | lower }}| {{ undefined_name | capitalize }}| {{ undefined_name | indent }}| {{ undefined_name | format }}| {{ undefined_name | truncate(3) }}| {{ undefined_name | center(3) }}| {{ undefined_name | urlencode }}| {{ undefined_name == '' }} {{ undefined_name or 'x' }} {{ undefined_name and 'x' }}| {{ (undefined_name) is undefined }} {{ undefined_name ~ '' }}| {{ undefined_name in [undefined_name] }} {{ [undefined_name] }} {{ {'a': undefined_name} }} {{ 'x' if undefined_name else 'y' }} {{ undefined_name is none }} {{ undefined_name is string }} {{ undefined_name is iterable }} {{ undefined_name is number }} {{ undefined_name is mapping }}
{{ undefined_name | abs }}
{{ undefined_name | round }}
{{ undefined_name | dictsort }}
{{ undefined_name | attr('x') }}
{{ undefined_name | tojson(indent=2) }}
{{ undefined_name | groupby('x') | list }}
{{ undefined_name | filesizeformat }}
{{ undefined_name | map(attribute='x') | list }} {{ undefined_name | selectattr('x') | list }} {{ undefined_name | groupby('a') | list }}
{% for x in [1,2,3] %}{{ loop.index }}{{ ", " if not loop.last }}{% endfor %} {% for x in [] %}{% else %}none{% endfor %} {% for k in {'a': 1} %}{{ k }}{% endfor %} {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %} {% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %} {% for x in 'ab' %}{{ x }}.{% endfor %} {% for i in range(2) %}{% for j in 'xy' %}{{ i }}{{ j }}{{ loop.index0 }}{% endfor %}{% endfor %}
{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in [1, 2] + [3] %}{{ x }}{% endfor %}{% for x in range(3)[1:] %}{{ x }}{% endfor %}{% for x in mapping | dictsort %}{{ x[0] }}{% endfor %}{% for x in mapping.values() %}{{ x }}{% endfor %}{% for x in words | sort %}{{ x }}{% endfor %}{% for x in words if 'p' in x %}{{ x }}{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}{% for x in numbers | reverse %}{{ x }}{% endfor %}{% for x in numbers | select('gt', 1) %}{{ loop.length }}{{ loop.revindex }}{% endfor %}{% for x in numbers | map('string') %}{{ loop.last }}{% endfor %}
{% for x in [1, 2] %}{% set y = loop.index %}{% for z in [1] %}{{ y }}{{ loop.index }}{% endfor %}{% endfor %}
{% set x %}{{ 1 }}{% endset %}{{ x + '1' }}{{ x == '1' }}{{ x is string }}{{ x | int + 1 }} {% set x = [] %}{% if x %}a{% else %}b{% endif %} {% set a = b = 1 %}
{% set x, y = [1, 2] %}{{ x }}{{ y }} {% set (p, q) = (3, 4) %}{{ p }}{{ q }} {% set a, b = 'xy' %}{{ a }}{{ b }} {% set x, (y, z) = 1, (2, 3) %}{{ x }}{{ y }}{{ z }}
{% set x, y = [1] %}
{% macro a(x, y=1, z=[1]) %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ a('q') }}{{ a('q', z=2) }}{{ a(x=1, y=2, z=3) }}{{ a() }}{{ a(undefined_name) }} {% macro b() %}{{ a(1) }}{% endmacro %}{{ b() }} {{ a('x') | length }} {% set c = a %}{{ c(5) }} {{ (a)(6) }} {{ [a][0](7) }} {{ {'f': a}.f(8) }} {{ a is callable }} {{ a is defined }}
{% macro m(list) %}{% for x in list %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) m([1, 2]) %}<{{ x }}>{% endcall %}{% call(x, y='d') m([1]) %}{{ x }}{{ y }}{% endcall %} {% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}{% call w() %}in{% endcall %}{% endcall %}
{% macro outer() %}{% macro inner(x) %}i{{ x }}{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }} {% if true %}{% macro cond() %}c{% endmacro %}{% endif %}{{ cond() }} {% for i in [1] %}{% macro loopm() %}L{% endmacro %}{% endfor %}{{ loopm is defined }}
{{ late() }}{% macro late() %}x{% endmacro %}
{% with a=1 %}{{ a }}{% with a=2, b=3 %}{{ a }}{{ b }}{% endwith %}{{ a }}{% endwith %}{{ a is defined }} {% with %}{% set q = 5 %}{{ q }}{% endwith %}{{ q is defined }}
{% filter upper | replace('A', 'b') %}a{% endfilter %}{% filter trim | indent(2, true) %} x {% endfilter %}{% filter tojson %}q"{% endfilter %}
{% if a is not defined or a is none %}1{% endif %}{% if not a %}2{% endif %}{% if a is defined and a.b %}3{% endif %}{% if 1 == 1 and (2 > 1 or false) %}4{% endif %}{% if [] or {} or '' or 0 or none %}5{% else %}6{% endif %}{% if 'a' 'b' == 'ab' %}7{% endif %}{% if not (1 > 2) %}8{% endif %}{% if 1 if false else 0 %}9{% endif %}
{% set ns = namespace(n=0, l=[], d={}) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i * 2] %}{% set ns.d = dict(ns.d, **{i | string: i}) %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.d }} {% set ns.n = none %}{{ ns.n is none }} {% if ns.zzz is not defined %}undef{% endif %} {{ ns.l | length }} {{ ns.d.items() | list }}
{% set ns = namespace() %}{% set ns.items = [1] %}{{ ns.items }} {% set ns.count = 0 %}{% for i in [1, 2] %}{% set ns.count = ns.count + 1 %}{% endfor %}{{ ns.count }} {% set ns.index = 3 %}{{ ns.index }} {% set ns.values = 'v' %}{{ ns.values }} {% set ns.format = 'f' %}{{ ns.format }} {% set ns.title = 't' %}{{ ns.title }}{{ ns['title'] }}
{% set data = {'count': 5, 'index': 6, 'title': 'T', 'format': 'F', 'items': 'I', 'values': 'V', 'keys': 'K', 'get': 'G', 'copy': 'C', 'name': 'N', 'split': 'S', 'strip': 'P', 'lower': 'L'} %}{{ data.count }}{{ data.index }}{{ data.title }}{{ data.format }}{{ data['items'] }}{{ data.name }}{{ data.split }}{{ data.strip }}{{ data.lower }}{{ data['get'] }} {{ data.get('items') }} {{ data.items is string }} {{ data.values is callable }}
{{ strftime_now('%d/%m/%Y') }} {{ strftime_now('%I:%M %p') }} {{ strftime_now('%A, %d %B %Y') }} {{ strftime_now('%y%m%d') }} {{ strftime_now('Today is %A') }} {{ strftime_now('100%%') }} {{ strftime_now('%H:%M:%S.%f') }} {{ strftime_now('%-I%p') }} {{ strftime_now('%s') | int > 0 }} {{ strftime_now('%Y')[2:] }} {{ strftime_now('%d %b %Y') | upper }} {{ strftime_now('é %Y 日') }} {{ strftime_now('%r') }} {{ strftime_now('%G-W%V-%u') }} {{ strftime_now('%E') }}
{{ raise_exception() }}
{{ raise_exception(5) }}
{{ raise_exception(message='x') }}
{{ loop_messages | default(messages) | length }} {{ (tools or []) | length }} {{ tools[0]['function']['parameters']['properties'].keys() | join(',') }} {{ tools[0].function.parameters.properties.a.enum | join('|') }} {{ tools[0].function.parameters.properties | length }} {{ tools[1].function.parameters.properties | tojson }} {{ tools[0].function.parameters.required | tojson }} {{ tools[0] | string | length }} {{ (tools | map(attribute='function.name') | list) | tojson }} {{ tools | map(attribute='function') | list | tojson(indent=2) | length }}
{{ (messages | length) > 1 and messages[1].role == 'user' }} {{ messages[-1].role != 'assistant' }} {{ messages | rejectattr('role', 'equalto', 'system') | list | length }} {{ messages[0].content[:5] }} {{ messages[0]['content'] | length }} {{ messages[1].content.strip().endswith('?') }} {{ messages[2].content or 'none' }} {{ messages[2].tool_calls[0].id[-2:] }} {{ messages[2].tool_calls | map(attribute='function') | map(attribute='name') | join('+') }} {{ messages[5].content[::-1] }} {{ messages[5].content | upper }} {{ messages[4].content.replace('<think>', '').split('</think>') }} {{ messages[4].content.partition('</think>')[2].strip() }} {{ messages[4].content.rsplit('</think>', 1)[-1] | trim }} {{ messages[3].content | int + 1 }}
{{ "a" ~ "b" ~ 1 ~ 2.0 ~ none ~ true ~ [1] ~ (1,) ~ {} }} {{ 'a' ~ undefined_name ~ 'b' }} {{ 1 ~ 1 == '11' }} {{ ('a' ~ 'b') * 2 }} {{ 'a' * 2 ~ 'b' }} {{ '-' * (3 - 1) }} {{ [0] * 3 }} {{ 'ab' * true }} {{ '' ~ '' == '' }} {{ 'x' ~ ('y' if false) ~ 'z' }} {{ 'q' ~ [] | length }}
{{ '\t|\n|\\|\'|\"|\a|\b|\f|\v|\/|\e' }}
{{ "\x41\u0042\103\U00000044" }} {{ "\N{BULLET}" }}
{{ 'tab\there' }} {{ "mixed 'quotes'" }} {{ 'mixed "quotes"' }} {{ '' }}{{ "" }} {{ 'emoji 😀' | length }} {{ 'é' | length }} {{ 'a\u0301' | length }}
{% for x in 1, 2 %}{{ x }}{% endfor %}
{% with a=2, b=a %}{{ b }}{% endwith %}
{% for x in [1] %}{{ loop.cycle() }}{% endfor %}
{{ 'abc'[::-9223372036854775808] }} {{ 'abc'[9223372036854775807:] }}| {{ 'abc'[-9223372036854775808:2:9223372036854775807] }} {{ range(0, 9223372036854775807, 9223372036854775807) | list }} {{ 'abc'.find('c', -9223372036854775808) }} {{ 2.5 | round(9999999) }} {{ 5 | round(-38) }} {{ 5 | round(-9999999) }} {{ 'abc' | truncate(9, leeway=9223372036854775807) }} {{ -9223372036854775808 | abs }} {{ -9223372036854775808 // -1 }} {{ -9223372036854775808 % -1 }} {{ 'a'.zfill(-9223372036854775808) }}
{{ range(-9223372036854775808, 9223372036854775807) }}
"""

# Templates of several lines, between lines of four dashes.
LINES = r"""
{% if true %}
  {% if true %}
x
  {% endif %}
{% endif %}
----
a
  {%- if true %}
 b
  {%- endif %}
c
----
a {%- if true -%} b {%- endif -%} c
----
a {%+ if true %} b {% endif +%}
c
----
  {%+ if true %}
x
  {%+ endif %}
----
{{ 'a' }}
{{ 'b' }}

{{- 'c' }}
{{ 'd' -}}

e
----
{# comment #}
a
  {# comment #}
b {# comment #}
c {#- comment -#} d
----
    {{ 'indented' }}
	{% set tab = 1 %}
x
----
a	{% if true %}b{% endif %}	
c
----
{% for n in numbers %}
- {{ n }}
{% endfor %}
end
----
{% for n in numbers -%}
- {{ n }}
{%- endfor %}
end
----
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- '<|user|>\n' + m.content + '\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|assistant|>\n' + m.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %}
----
{% set x %}

a

{% endset %}
{{ x | tojson }}
----
{% macro m(a) %}
  [{{ a }}]
{% endmacro %}
{{ m(1) }}
{{ m(2) -}}
{{ m(3) }}
----
{% raw %}
  {{ x }}
{% endraw %}
y
----
  {% raw %}
x
  {% endraw %}
y
----
x{% if true %}

y{% endif %}

z


----
a{% if true %}  
b{% endif %}c
----
{% generation %}
  x
{% endgeneration %}
y
----
a
  {% generation %}
x
  {% endgeneration %}
y
----
{{ "two
lines" }}
----
{{
  'a' ~
  'b'
}}
----
{%
  set x = 1
%}{{ x }}
----
{% if true
   and true %}
yes
{% endif %}
----
{{ {
  'a': 1,
  'b': [1, 2,],
} | tojson }}
----
a  {{- '' -}}  b {{ '' }} c
----
<s>{% if 1 %}   {% endif %}x
----
{%- set ns = namespace(first=true) -%}
{%- for m in messages -%}
  {%- if ns.first -%}{%- set ns.first = false -%}{%- else -%}{{ '\n' }}{%- endif -%}
  {{- m.role -}}
{%- endfor -%}
----
{{ "line \
continued" }}{{ 'a\\\
b' }}
----
{% filter indent(2) %}a
b{% endfilter %}
----
{% for line in messages[2].reasoning_content.splitlines() %}> {{ line }}
{% endfor %}{{ '\n'.join(messages[2].reasoning_content.split('\n')[:1]) }}
----
{% macro render(tools) %}{% for tool in tools %}{{ loop.index }}. {{ tool.function.name }}{{ caller(tool) if caller }}
{% endfor %}{% endmacro %}{% call(t) render(tools) %} - {{ t.function.description | default('none', true) }}{% endcall %}
"""

# What published templates do.
CHAT = r"""
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
{{ bos_token }}{% for m in messages if m.role != 'system' %}{{ '[INST] ' ~ m.content | trim ~ ' [/INST]' if m.role == 'user' else m.content ~ eos_token }}{% endfor %}
{%- for message in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}{{ index }}{% if message.role == 'user' and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}!{% endif %}{%- endfor %}
{% set content = messages[4].content %}{% if '</think>' in content %}{% set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ reasoning }}|{{ content }}
{% for tool_call in messages[2].tool_calls %}{% if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}}</tool_call>{% endfor %}
{% for call in messages[2].tool_calls %}<function={{ call.function.name }}>{% for name, value in call.function.arguments | items %}<parameter={{ name }}>{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}</parameter>{% endfor %}</function>{% endfor %}
{% for call in messages[2].tool_calls %}{% for key in call.function.arguments %}{{ key }}:{{ call.function.arguments[key] }}{% if not loop.last %},{% endif %}{% endfor %};{% endfor %}
{% for call in messages[2].tool_calls %}{% if call.function.arguments %}yes{% else %}no{% endif %}{{ call.function.arguments | length }}{{ call.function.arguments is mapping }}{{ call.function.arguments is string }}{{ call.function.arguments.keys() | list }}{{ call.function.arguments.get('a', 'none') }};{% endfor %}
{% for tool in tools %}{{ tool | tojson(indent=4) }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}
{{ '{"type": "function", "function": ' }}{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}
{% for tool in tools | selectattr('type', 'equalto', 'function') | map(attribute='function') %}{{ tool.name }}({% for name, spec in tool.parameters.properties.items() %}{{ name }}: {{ spec.type if spec.type is string else spec.type | join(' | ') }}{{ ', ' if not loop.last }}{% endfor %});{% endfor %}
{%- macro render_extra_keys(json_dict, handled_keys) -%}{%- if json_dict is mapping %}{%- for json_key in json_dict if json_key not in handled_keys %}{%- if json_dict[json_key] is string %}{{- '\n<' ~ json_key ~ '>' ~ json_dict[json_key] ~ '</' ~ json_key ~ '>' }}{%- else %}{{- '\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro -%}{{ render_extra_keys(tools[0].function, ['name']) }}
{% if (messages | map(attribute='role') | list) == ['user'] %}a{% else %}{{ messages | map(attribute='role') | join('/') }}{% endif %}
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'].strip() + '\n\n' %}{% else %}{% set loop_messages = messages %}{% set system_message = '' %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 %}{% set content = system_message + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{{ content.strip() }};{% endfor %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}x{% else %}y{% endif %}{% endfor %}
{% set ns = namespace(is_first=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = ns.system_prompt + (message['content'] if ns.system_prompt == '' else '\n\n' + message['content']) %}{%- endif %}{%- endfor -%}{{ ns.system_prompt }}
{%- set date_string = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}{{ "Today Date: " + date_string + "\n\n" }}
{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %B %Y') %}{%- endif %}{{ date_string }}
{%- set today = strftime_now("%Y-%m-%d") %}{{ today.split('-')[0] | int - 1 }} {{ today.replace('-', '/') }} {{ today[:4] }}
{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}
{% if tools %}{{ 'Tools: ' ~ (tools | map(attribute='function.name') | join(', ')) }}{% endif %} {{ tools | map(attribute='function') | map(attribute='name') | list }} {{ tools[1].function.description | default('no description') }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %} {% if not enable_thinking | default(true) %}off{% endif %}
{% set role_map = {'system': 'S', 'user': 'U', 'assistant': 'A'} %}{% for m in messages %}{{ role_map[m.role] | default('?') }}{{ role_map.get(m.role, '!') }}{% endfor %}
{% set roles = namespace(list=[]) %}{% for m in messages %}{% if m.role not in roles.list %}{% set roles.list = roles.list + [m.role] %}{% endif %}{% endfor %}{{ roles.list | join(',') }}
{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='content') | map('trim') | join('\n') }} {{ (messages | last).role }} {{ (messages | first)['role'] }} {{ messages[-1].role == 'user' and add_generation_prompt }}
{% set parts = 'a=1;b=2'.split(';') %}{% for part in parts %}{% set key, value = part.split('=') %}{{ key }}:{{ value }} {% endfor %}{% set kv = 'k=v'.partition('=') %}{{ kv[0] }}{{ kv[2] }}
{{ messages[2].get('reasoning_content', '') }} {{ messages[0].get('reasoning_content') or 'x' }} {{ messages[0].reasoning_content | default('y') }} {% if messages[2].reasoning_content is defined %}{{ messages[2].reasoning_content.replace('\n', ' ') }}{% endif %} {{ messages[0]['x'] is undefined }}
{{ "Here are the functions:\n" ~ '\n'.join(tools | map('tojson')) }} {{ ['a', 'b'] | join('\n') }} {{ [messages[0].content, messages[1].content] | map('length') | sum }} {{ messages | map('length') | list }}
{{ (messages[1].content | string).strip() }} {{ messages[1].content | trim | length }} {{ messages[1]['content'].rstrip().endswith('?') }} {{ messages[5].content.encode('utf-8') | length }}
{%- macro param_type(spec) -%}{%- if spec.type is sequence and spec.type is not string -%}{{- spec.type | map('replace', 'null', 'None') | join(' | ') -}}{%- elif spec.enum -%}{{ spec.enum | join('|') }}{%- else -%}{{ {'string': 'str', 'number': 'float'}[spec.type] or 'Any' }}{%- endif -%}{%- endmacro -%}{% for name, spec in tools[0].function.parameters.properties | dictsort %}{{ name }}: {{ param_type(spec) }}{% if name in tools[0].function.parameters.required %} (required){% endif %}; {% endfor %}
{{ messages[2].tool_calls | length }} {{ messages[2].tool_calls[-1].function.name }} {{ messages[2].tool_calls is iterable and messages[2].tool_calls is not string and messages[2].tool_calls is not mapping }} {{ messages[0].tool_calls or [] }} {{ 'tool_calls' in messages[2] and messages[2]['tool_calls'] | length > 0 }} {{ messages[0].tool_calls is not none }} {{ messages[3].tool_call_id[-9:] }}
{{ loop_count | default(0) + 1 }} {{ (messages | length) // 2 }} {{ messages | length % 2 }} {{ (messages | length) / 2 }} {{ (messages | length - 1) * 10 }} {{ '=' * 10 }} {{ ('-' * 3) ~ '>' }}
{% set vars = {'name': 'x'} %}{{ 'Hello {name}'.format(**vars) }} {{ 'Hello %(name)s' % vars }} {{ "%s: %s" | format('a', 'b') }} {{ "%02d" % 5 }} {{ "{:02d}".format(5) }}
{{ m(*numbers) if m is defined }}|{% macro three(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ three(*numbers) }} {{ three(**{'a': 1, 'b': 2, 'c': 3}) }} {{ '%s%s%s' | format(*numbers) }} {{ '{}{}'.format(*words) }} {{ three(1, *[2, 3]) }}
{{ '{% if x %}' }}{{ "{{ y }}" }} {{ '<|' }}{{ 'a' if 'x' in 'xyz' else 'b' }}{{ '|>' }} {{ "it's" }} {{ 'say "x"' }} {{ ' ' }}|{{ '\t' }}|{{ '\n' }}|
{{ content if (content := 1) else 2 }}
{{ messages | tojson(indent=1) | length }} {{ messages[0] | tojson }} {{ messages[:1] | tojson }} {{ messages | list | length }} {{ messages[0].items() | list }} {{ messages[0].keys() | join(',') }} {{ messages[0] | length }} {{ messages[0] }}
"""


def idioms():
    """Return pairs of a subject and a template."""
    subjects = {
        "printing": PRINTING,
        "operators": OPERATORS,
        "formatting": FORMATTING,
        "strings": STRINGS,
        "containers": CONTAINERS,
        "filters": FILTERS,
        "json": JSON,
        "tests": TESTS,
        "statements": STATEMENTS,
        "chat": CHAT,
        "more": MORE,
    }
    lines = ((subject, line) for subject, text in subjects.items() for line in text[1:-1].split("\n"))
    single = [(subject, idiom) for subject, line in lines for idiom in expressions(line)]
    return single + [("lines", text) for text in LINES[1:-1].split("\n----\n")]


def expressions(line):
    """Return the expressions of a line without statements, each with the text after it, or else the line."""
    if "{%" in line:
        return [line]
    try:
        tokens = list(jinja2.Environment().lex(line))
    except jinja2.TemplateSyntaxError:
        return [line]
    found = []
    for _, kind, text in tokens:
        if kind == "variable_begin":
            found.append("")
        found[-1] += text
    return [text.rstrip() for text in found]
