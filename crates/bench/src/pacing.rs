//! Placements whose devices are paced by published or measured pass times.

use forerun::Placement;
use forerun::placement::{Pace, PlacementError};
use forerun_sim::papers::published_paces;
use forerun_sim::planning::HardwareProfile;

/// Parses a placement. `paced=NAME` names published pass times ([`published_paces`]), and
/// `paced=FILE.toml#METHOD` those of a hardware profile, as `forerun plan --save-profile` writes
/// it.
///
/// # Errors
/// As [`Placement::parse_paced`], or if the file cannot be read or has no such pass times.
pub fn placement(text: &str) -> Result<Placement, PlacementError> {
    Placement::parse_paced(text, find)
}

/// Returns the pass times of this name, or why there are none.
fn find(name: &str) -> Result<Pace, String> {
    let (file, timing) = match name.split_once('#') {
        Some((file, timing)) => (file, Some(timing)),
        None if name.ends_with(".toml") => (name, None),
        None => {
            let known = published_paces();
            let names = names(&known);
            let found = known.into_iter().find(|pace| pace.name == name);
            return found.ok_or_else(|| {
                format!("name a profile, as FILE.toml#METHOD, or published pass times: {names}")
            });
        }
    };
    let text = std::fs::read_to_string(file).map_err(|cause| format!("cannot read it: {cause}"))?;
    let mut paces = HardwareProfile::parse(&text)?.paces().map_err(|error| error.to_string())?;
    let names = names(&paces);
    let found = match timing {
        Some(timing) => paces.iter().position(|pace| pace.name == timing),
        None => (paces.len() == 1).then_some(0),
    };
    match found {
        Some(index) => Ok(Pace { name: name.into(), ..paces.swap_remove(index) }),
        None => Err(format!("write {file}#NAME with one of its timings: {names}")),
    }
}

fn names(paces: &[Pace]) -> String {
    paces.iter().map(|pace| &*pace.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_times_are_published_or_of_a_profile() {
        let published = "drafter=cpu:0,target=cpu:0,target=cpu:0,paced=llama-2-7b-70b-a100";
        assert_eq!(placement(published).unwrap().to_string(), published);
        let message = placement("target=cpu:0,paced=fast").unwrap_err().to_string();
        assert!(message.contains("llama-2-7b-70b-a100, ") && message.contains("FILE.toml#METHOD"));

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("profile.toml");
        let text = include_str!("../../../docs/profiles/4-hosts-70b.toml");
        std::fs::write(&file, text).unwrap();
        let of = |models: &str, name: &str| {
            placement(&format!("{models},paced={}{name}", file.display()))
                .map_err(|error| error.to_string())
        };
        let placed = of("drafter=cpu:0,target=cpu:1", "#pearl-2").unwrap();
        let pace = placed.pace().unwrap();
        assert!(pace.name.ends_with("profile.toml#pearl-2"));
        // Two ranks have a half of the weights each, and exchange what they compute.
        assert!(pace.target.rows_ns[0].1 > 54_200_000, "{pace:?}");
        assert_eq!(pace.target.first_ns.map(|ns| ns > 1_000_000_000), Some(true));
        for (models, name, words) in [
            ("target=cpu:0", "", "autoregressive, pearl, pearl-2, dsi, autoregressive-2, pearl-3"),
            ("target=cpu:0", "#ssd", "with one of its timings: autoregressive"),
            ("drafter=cpu:0,target=cpu:1", "#autoregressive", "no times of a drafter"),
        ] {
            let message = of(models, name).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        assert!(placement("target=cpu:0,paced=none.toml").is_err());
    }
}
