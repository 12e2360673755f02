//! The names that the crate shows, in `public-names.txt`: they change only on purpose.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The most names at the root.
const MOST_AT_THE_ROOT: usize = 60;

/// Adds the names that the public items of a `lib.rs` bring, each after `path`.
fn add_names(source: &str, path: &str, names: &mut BTreeSet<String>) {
    let is_code = |line: &&str| !line.starts_with("//") && !line.starts_with('#');
    let lines: Vec<&str> = source.lines().map(str::trim).filter(is_code).collect();
    let code = lines.join(" ");
    let mut rest = code.as_str();
    while let Some((_, item)) = rest.split_once("pub ") {
        rest = if let Some((tree, rest)) =
            item.strip_prefix("use ").and_then(|item| item.split_once(';'))
        {
            let list = tree.split_once('{').map_or(tree, |(_, list)| list.trim_end_matches('}'));
            assert!(!list.contains('{'), "write one `pub use` for each path: {tree}");
            let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
            names.extend(
                items.filter_map(|item| Some(format!("{path}{}", item.rsplit([' ', ':']).next()?))),
            );
            rest
        } else if let Some((name, rest)) =
            item.strip_prefix("mod ").and_then(|item| item.split_once(" {"))
        {
            // A use ends with `};`, a module with `; }`.
            let (body, rest) = rest.split_once("; }").expect("a module of uses");
            names.insert(format!("{path}{name}"));
            add_names(&format!("{body};"), &format!("{path}{name}::"), names);
            rest
        } else {
            panic!("the root has only `pub use` and `pub mod` with uses: {item:.40}")
        };
    }
}

#[test]
fn the_public_names_are_those_that_are_written_down() -> Result<(), std::io::Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    for (path, of) in [("src", ""), ("../text/src", "text::"), ("../hub/src", "hub::")] {
        add_names(&fs::read_to_string(folder.join(path).join("lib.rs"))?, of, &mut names);
    }
    let at_the_root = names.iter().filter(|name| !name.contains("::")).count();
    assert!(
        at_the_root <= MOST_AT_THE_ROOT,
        "{at_the_root} names at the root, and at most {MOST_AT_THE_ROOT} may be there: put new ones \
         into a module"
    );
    let list: String = names.iter().map(|name| format!("{name}\n")).collect();
    let file = folder.join("public-names.txt");
    if std::env::var_os("FORERUN_UPDATE_REFERENCE").is_some() {
        return fs::write(file, list);
    }
    let written = fs::read_to_string(&file)?;
    assert_eq!(written, list, "update {} with `just reference`", file.display());
    Ok(())
}
