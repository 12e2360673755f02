//! Chat templates are untrusted programs: their memory and steps are bounded.

#![cfg(target_os = "linux")]

use forerun_text::{ChatTemplate, Message};
use std::sync::{Mutex, PoisonError};

/// Held by each test: one measures the memory of the process, which must not be that of another
/// test.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The most memory that a rendering may need, in KiB. The budget is 32 MiB, and strings grow by
/// doubling.
const MAX_GROWTH: u64 = 128 << 10;

/// Returns the largest resident size of this process so far, in KiB.
fn peak() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(peak.trim().trim_end_matches(" kB").parse()?)
}

/// Repeats a step 60 times, with a string, a list and a map in a namespace.
fn sixty(step: &str) -> String {
    format!(
        "{{% set ns = namespace(s='ab', l=['ab'], m={{}}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.s }}}}"
    )
}

const BUILDS: &str = "builds or reads more than";
const STEPS: &str = "does not finish within";

#[test]
fn hostile_templates_are_errors_with_little_memory() -> Outcome {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let loops = |count: usize, body: &str| {
        let (start, end) = ("{% for i in range(9999) %}", "{% endfor %}");
        start.repeat(count) + body + &end.repeat(count)
    };
    let nested = |value: &str| {
        let step = format!("{{% set ns.s = {value} %}}");
        format!("{{% set ns = namespace(s=1) %}}{}", loops(1, &step))
    };
    let cases = [
        (sixty("{% set ns.s = ns.s ~ ns.s %}"), BUILDS),
        (sixty("{% set ns.s = ns.s + ns.s %}"), BUILDS),
        (sixty("{% set ns.s = ns.s * 2 %}"), BUILDS),
        (sixty("{% set ns.s = [ns.s, ns.s] | join %}"), BUILDS),
        (sixty("{% set ns.s = ''.join([ns.s, ns.s]) %}"), BUILDS),
        (sixty("{% set ns.s = ns.s | replace('a', 'aba') %}"), BUILDS),
        (sixty("{% set ns.s = ns.s.replace('', 'ab') %}"), BUILDS),
        (sixty("{% set ns.s = ['a' * 60000] | map('replace', 'a', ns.s) | first %}"), BUILDS),
        (sixty("{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"), BUILDS),
        (sixty("{% set ns.s = '{0}{0}'.format(ns.s) %}"), BUILDS),
        (sixty("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"), BUILDS),
        (sixty("{% set ns.s = '%s%s' | format(*[ns.s, ns.s]) %}"), BUILDS),
        (sixty("{% set ns.s = '{}{}'.format(*([ns.s] * 2)) %}"), BUILDS),
        (sixty("{% set ns.s = '{a}{a}'.format_map({'a': ns.s}) %}"), BUILDS),
        (sixty("{% set ns.s = ns.s.translate({97: ns.s, 98: ns.s}) %}"), BUILDS),
        (sixty("{% set ns.s = ns.s.rpartition('b') | string %}{% set ns.s = ns.s * 2 %}"), BUILDS),
        (sixty("{% set ns.l = ns.l.copy() + ns.l[::-1] %}"), BUILDS),
        (sixty("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"), BUILDS),
        (
            sixty(
                "{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}",
            ),
            BUILDS,
        ),
        (sixty("{% set ns.s = ns.s | tojson | tojson | tojson %}"), BUILDS),
        (sixty("{% set ns.l = ns.l + ns.l %}"), BUILDS),
        (sixty("{% set ns.l = ns.l * 2 %}"), BUILDS),
        (sixty("{% set ns.l = [ns.l, ns.l] %}"), BUILDS),
        (sixty("{% set ns.m = {'a': ns.m, 'b': ns.m} %}"), BUILDS),
        (sixty("{% set ns.m = dict(a=ns.m, b=ns.m) %}"), BUILDS),
        (
            "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}".to_owned()
                + &sixty("{% set ns.s = m(ns.s) %}"),
            BUILDS,
        ),
        ("{{ 'a' * 10**9 }}".to_owned(), BUILDS),
        ("{{ 'a' * 99999999 }}".to_owned(), BUILDS),
        ("{{ 99999999.0 * 'é' }}".to_owned(), BUILDS),
        ("{{ (1,) * 99999999 }}".to_owned(), BUILDS),
        ("{{ [1] * 99999999 }}".to_owned(), BUILDS),
        ("{{ '%999999999s' | format('a') }}".to_owned(), BUILDS),
        ("{{ '%*d' | format(999999999, 1) }}".to_owned(), BUILDS),
        ("{{ '%999999999d' % 1 }}".to_owned(), BUILDS),
        ("{{ '%-*d' % (999999999, 1) }}".to_owned(), BUILDS),
        ("{{ '%.999999999f' % 1.5 }}".to_owned(), BUILDS),
        ("{{ '{:{}}'.format('a', 999999999) }}".to_owned(), BUILDS),
        ("{{ '{:{w}}'.format('a', w=999999999) }}".to_owned(), BUILDS),
        ("{{ '{:{w}}'.format_map({'w': 999999999}) }}".to_owned(), BUILDS),
        ("{{ 'a'.center(999999999) }}".to_owned(), BUILDS),
        ("{{ 'a'.ljust(width=999999999) }}".to_owned(), BUILDS),
        ("{{ 'a'.zfill(999999999) }}".to_owned(), BUILDS),
        ("{{ 'a' | center(999999999) }}".to_owned(), BUILDS),
        ("{{ '\\t'.expandtabs(999999999) }}".to_owned(), BUILDS),
        ("{{ ('\\t' * 999999).expandtabs(tabsize=999) }}".to_owned(), BUILDS),
        ("{{ ('a' * 99999).translate({97: 'b' * 99999}) }}".to_owned(), BUILDS),
        ("{{ ('a' * 99999).replace('a', 'b' * 99999) }}".to_owned(), BUILDS),
        ("{{ ([0] * 9999) | tojson(separators=(',' * 99999, ':')) }}".to_owned(), BUILDS),
        ("{{ ([0] * 9999) | tojson(indent=' ' * 99999) }}".to_owned(), BUILDS),
        ("{{ (['a' * 999999] * 9999) | sort }}".to_owned(), BUILDS),
        ("{{ (['a' * 999999] * 9999) | unique }}".to_owned(), BUILDS),
        ("{{ (['a' * 999999] * 9999).index('b' * 999999) }}".to_owned(), BUILDS),
        ("{{ ('\\n' * 99999) | indent('a' * 99999, blank=true) }}".to_owned(), BUILDS),
        ("{{ ('a,' * 9999999).rsplit(sep=',') }}".to_owned(), BUILDS),
        ("{{ ('\\r' * 9999999).splitlines() }}".to_owned(), BUILDS),
        ("{{ ('a' * 9999999)[::-1] }}".to_owned(), BUILDS),
        ("{{ '{:>999999999}'.format('a') }}".to_owned(), BUILDS),
        ("{{ 'a' | indent(999999999, true) }}".to_owned(), BUILDS),
        ("{{ ('\\n' * 99999) | indent(width=99999, blank=true) }}".to_owned(), BUILDS),
        ("{{ [1, 2] | tojson(indent=999999999) }}".to_owned(), BUILDS),
        ("{{ [1] | batch(999999999, 'x') }}".to_owned(), BUILDS),
        ("{{ [1] | slice(999999999) }}".to_owned(), BUILDS),
        ("{{ ('a,' * 9999999) | split(',') }}".to_owned(), BUILDS),
        ("{{ ('a' * 9999999) | list }}".to_owned(), BUILDS),
        ("{% set s = 'a' * 9999999 %}".to_owned() + &loops(2, "{{ s == s ~ '' }}"), BUILDS),
        ("{% set s = 'a' * 9999999 %}".to_owned() + &loops(2, "{{ 'b' in s }}"), BUILDS),
        (
            "{% set s = 'a' * 9999999 %}".to_owned() + &loops(2, "{% if s | length %}{% endif %}"),
            BUILDS,
        ),
        (
            "{% set s = 'a' * 9999999 %}".to_owned() + &loops(2, "{% if s.strip() %}{% endif %}"),
            BUILDS,
        ),
        (loops(2, &"x".repeat(1000)), BUILDS),
        (format!("{{% set s %}}{}{{% endset %}}", loops(2, &"x".repeat(1000))), BUILDS),
        (loops(3, ""), STEPS),
        (
            format!("{{% set ns = namespace(s=[]) %}}{}", loops(1, "{% set ns.s = [ns.s] %}")),
            "levels deep",
        ),
        (
            format!("{{% set ns = namespace(s=[]) %}}{}", loops(1, "{% set ns.s = {'a': ns.s} %}")),
            "levels deep",
        ),
        (
            format!(
                "{{% set ns = namespace(s=range(9)) %}}{}{{{{ ns.s }}}}",
                loops(2, "{% set ns.s = ns.s[1:] + [i] %}")
            ),
            BUILDS,
        ),
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(), "levels deep"),
        ("{% set ns = namespace() %}{% set ns.a = ns %}{{ '' ~ ns }}".to_owned(), "levels deep"),
        (
            format!(
                "{{% set ns = namespace() %}}{}",
                loops(
                    1,
                    "{% set n = namespace() %}{% set n.next = ns.first %}{% set ns.first = n %}"
                )
            ),
            "levels deep",
        ),
        (loops(1, "{% set n = namespace() %}"), "more than 1000 namespaces"),
        (nested("cycler(ns.s)"), "levels deep"),
        (nested("joiner(ns.s)"), "levels deep"),
        (nested("[ns.s].count"), "levels deep"),
        ("{{ range(10**9) | list }}".to_owned(), "too many elements"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), "recursion limit"),
        ("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(), "recursion limit"),
        ("{% block b %}{{ self.b() }}{% endblock %}".to_owned(), "recursion limit"),
    ];
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("hostile.jinja");
    let choice = file.to_str().ok_or("not UTF-8")?;
    let before = peak()?;
    for (template, expected) in cases {
        std::fs::write(&file, &template)?;
        let rendered =
            ChatTemplate::choose(folder.path(), choice)?.render(&[Message::user("Hi")], true);
        let error = rendered.map(|text| text.len()).expect_err(&template).to_string();
        assert!(error.contains(expected) && error.len() < 500, "{template}: {error}");
        let growth = peak()? - before;
        assert!(growth < MAX_GROWTH, "{growth} KiB: {template}");
    }
    Ok(())
}

/// The budget grows with the messages, so long conversations are rendered.
#[test]
fn long_conversations_are_rendered() -> Outcome {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("long.jinja");
    // Each message is searched, split, trimmed and collected, as templates with reasoning do.
    std::fs::write(
        &file,
        "{% set ns = namespace(text='', list=[]) %}{% for m in messages %}\
         {% if '</think>' in m.content %}{% set c = m.content.split('</think>')[-1].lstrip('\\n') %}\
         {% else %}{% set c = m['content'] | trim %}{% endif %}\
         {% if loop.index0 > 0 and messages[loop.index0 - 1].role != m.role %}\
         {{ m.role + '\\n' + c }}{% endif %}{% set ns.list = ns.list + [m] %}{% endfor %}",
    )?;
    let template = ChatTemplate::choose(folder.path(), file.to_str().ok_or("not UTF-8")?)?;
    let turn = |turn: usize| match turn % 2 {
        0 => Message::user("question ".repeat(100)),
        _ => Message::assistant(format!("reasons</think>{}", "answer ".repeat(200))),
    };
    let messages: Vec<Message> = (0..1000).map(turn).collect();
    assert!(template.render(&messages, true)?.len() > 1_000_000);
    let long = [Message::user("x"), Message::assistant("word ".repeat(4_000_000))];
    assert!(template.render(&long, true)?.len() > 19_000_000);
    Ok(())
}
