//! The report in a real browser: light and dark, wide and as narrow as a phone, without console
//! messages and network requests.
//!
//! Without Chromium, the test is skipped with a message. `FORERUN_BROWSER` can name a browser.

use crate::common::{Models, Run};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Finds a browser that starts.
fn browser() -> Option<OsString> {
    let starts = |name: &OsString| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if let Some(named) = std::env::var_os("FORERUN_BROWSER") {
        assert!(starts(&named), "FORERUN_BROWSER names {}, which does not start", named.display());
        return Some(named);
    }
    BROWSERS.iter().map(OsString::from).find(starts)
}

/// A script that records properties of a page as attributes of its root element.
const PROBE: &str = "<script>addEventListener('load', () => {
  const root = document.documentElement, body = getComputedStyle(document.body);
  const probed = {
    inner: innerWidth, scroll: root.scrollWidth, background: body.backgroundColor, color: body.color,
    pictures: [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 200).length,
    requests: performance.getEntriesByType('resource').length,
  };
  for (const [name, value] of Object.entries(probed)) root.setAttribute('data-probed-' + name, value);
});</script>";

/// Opens a page. Returns its recorded properties and its console messages.
fn open(
    browser: &OsString,
    page: &Path,
    width: usize,
    dark: bool,
) -> (BTreeMap<String, String>, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .args(["--virtual-time-budget=2000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let console = errors.lines().filter(|line| line.contains("CONSOLE")).collect();
    let mut probed = BTreeMap::new();
    for part in dom.split("data-probed-").skip(1) {
        if let Some((name, rest)) = part.split_once("=\"")
            && let Some((value, _)) = rest.split_once('"')
        {
            probed.insert(name.to_owned(), value.to_owned());
        }
    }
    assert!(!probed.is_empty(), "the page reported nothing: {errors}");
    (probed, console)
}

#[test]
fn the_report_is_readable_light_and_dark_wide_and_narrow() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no browser; install chromium, or name one in FORERUN_BROWSER");
        return;
    };
    let models = Models::pair();
    let out = models.folder().join("bench");
    let prompts = models.folder().join("prompts.jsonl");
    let lines: String = (0..6)
        .map(|number| {
            let category = ["dialogue", "letters", "lists and repetition"][number % 3];
            format!(r#"{{"id": "{number}", "category": "{category}", "prompt": "Once {number}"}}"#)
                + "\n"
        })
        .collect();
    fs::write(&prompts, lines).unwrap();
    let run = Run::of("bench run --repeats 2 --warm-ups 1 -n 12");
    let run = run.with_path("--model", &models.target()).with_path("--suite", &prompts);
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--out", &out);
    run.words("--method speculative,pearl --draft-tokens 3").on_one_core().succeed();
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    let page = out.join("probed.html");
    fs::write(&page, format!("{report}{PROBE}")).unwrap();

    let mut colours = Vec::new();
    for (width, dark) in [(1200, false), (1200, true), (500, false), (500, true)] {
        let (probed, console) = open(&browser, &page, width, dark);
        let number = |name: &str| probed[name].parse::<usize>().unwrap();
        assert_eq!(console, "", "at {width}, dark {dark}");
        assert!(number("inner") <= width && number("scroll") <= number("inner"), "{probed:?}");
        assert!(number("pictures") >= 3 && number("requests") == 0, "{probed:?}");
        colours.push((probed["background"].clone(), probed["color"].clone()));
    }
    assert_eq!((&colours[0], &colours[1]), (&colours[2], &colours[3]));
    assert!(colours[0].0 != colours[1].0 && colours[0].1 != colours[1].1, "{colours:?}");
}
