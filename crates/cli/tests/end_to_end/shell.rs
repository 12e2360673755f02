//! Completions and manual pages.

use crate::common::{Reader, Run};

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = Run::forerun().with(&["completions", shell]).succeed().output();
        for word in ["generate", "draft-tokens", "models", "doctor"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    Run::of("completions cmd").finish().assert_refused("cmd", &["bash", "zsh"]);
}

#[cfg(target_os = "linux")]
#[test]
fn bash_accepts_its_script_and_completes_commands() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("forerun");
    std::fs::write(&script, Run::of("completions bash").succeed().output()).unwrap();
    let line = "source \"$0\"; COMP_WORDS=(forerun do); COMP_CWORD=1; _forerun forerun do forerun; \
                echo \"${COMPREPLY[@]}\"";
    let bash = std::process::Command::new("bash").args(["-c", line]).arg(&script).output();
    let Ok(bash) = bash else {
        eprintln!("skipped: there is no bash");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&bash.stdout), "doctor\n", "{bash:?}");
}

#[test]
fn manual_pages_of_all_commands_are_written() {
    let page = Run::of("man").succeed().output();
    assert!(page.contains(".TH forerun 1") && page.contains("forerun\\-generate"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new/man1");
    Run::of("man").with_path("--output", &pages).succeed();
    for name in
        ["forerun.1", "forerun-generate.1", "forerun-models-rm.1", "forerun-bench-kernels.1"]
    {
        let page = std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(page.contains(".SH NAME"), "{name}: {page}");
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = Run::of("man").with_path("--output", &file).finish();
    refused.assert_refused("a file", &["cannot write manual pages"]);
}

#[test]
fn a_closed_reader_is_no_failure() {
    let closed = Run::of("completions bash").reader(Reader::Closing(10)).finish();
    assert_eq!(closed.code, Some(0), "{}", closed.errors);
}
