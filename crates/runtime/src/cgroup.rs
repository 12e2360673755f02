//! The control groups of this process, as Linux shows them in files.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// A version of control groups. A process may be in groups of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// One hierarchy for each controller, or for a few together.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// Returns the folders of this process's control groups, and of their ancestors, that may limit
/// `controller` (`memory`, `cpu`). `root` is the root of the file system.
///
/// A limit of any of these folders holds. Not all of them need to exist.
pub(crate) fn folders(root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    let read = |path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mounts: Vec<Mount<'_>> =
        mounts.lines().filter_map(|line| Mount::parse(line, controller)).collect();
    let mut folders = Vec::new();
    for (version, group) in groups.lines().filter_map(|line| parse_group(line, controller)) {
        for mount in mounts.iter().filter(|mount| mount.version == version) {
            folders.extend(mount.folders(root, group).map(|folder| (version, folder)));
        }
    }
    folders
}

/// Parses a line of `/proc/self/cgroup`, such as `4:cpu,cpuacct:/docker/1a`. Returns `None` for
/// groups that `controller` does not limit.
fn parse_group<'a>(line: &'a str, controller: &str) -> Option<(Version, &'a Path)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let version = match controllers {
        "" => Version::V2,
        _ => controllers.split(',').any(|name| name == controller).then_some(Version::V1)?,
    };
    Some((version, Path::new(path)))
}

/// A mounted hierarchy of control groups.
struct Mount<'a> {
    version: Version,
    /// The group at the mount point.
    group: &'a Path,
    point: &'a Path,
}

impl<'a> Mount<'a> {
    /// Parses a line of `/proc/self/mountinfo`. Returns `None` for other mounts.
    fn parse(line: &'a str, controller: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup2" => Version::V2,
            "cgroup" => {
                let limits = system.nth(1)?.split(',').any(|option| option == controller);
                limits.then_some(Version::V1)?
            }
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        let (group, point) = (Path::new(mount.next()?), Path::new(mount.next()?));
        Some(Self { version, group, point })
    }

    /// Returns the folders of a group and of its ancestors, as far as they are mounted.
    fn folders(&self, root: &Path, group: &Path) -> impl Iterator<Item = PathBuf> {
        let point = root.join(self.point.strip_prefix("/").unwrap_or(self.point));
        // A group outside the mounted ones is seen in some containers. Then the mounted one is the
        // best guess.
        let below = group.strip_prefix(self.group).ok();
        let below =
            below.filter(|path| path.components().all(|c| matches!(c, Component::Normal(_))));
        below.unwrap_or(Path::new("")).ancestors().map(move |path| point.join(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_lead_from_the_process_to_the_mounted_group() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let write = |groups: &str, mounts: &str| {
            fs::write(root.path().join("proc/self/cgroup"), groups).unwrap();
            fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        };
        let found = |controller: &str| -> Vec<(Version, String)> {
            let folders = folders(root.path(), controller).into_iter();
            let name = |folder: &Path| {
                let name = folder.strip_prefix(root.path()).unwrap().display().to_string();
                name.trim_end_matches('/').to_owned()
            };
            folders.map(|(version, path)| (version, name(&path))).collect()
        };
        let expected = |version, paths: &[&str]| -> Vec<(Version, String)> {
            paths.iter().map(|path| (version, format!("sys/fs/cgroup{path}"))).collect()
        };
        assert_eq!(found("memory"), []);
        let unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        write("0::/user.slice/app\n", unified);
        let paths = ["/user.slice/app", "/user.slice", ""];
        assert_eq!(found("cpu"), expected(Version::V2, &paths));
        // A container's own group is mounted, but the process may see the machine's path.
        let own = "30 23 0:26 /docker/0123 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for group in ["0::/docker/0123\n", "0::/../elsewhere\n"] {
            write(group, own);
            assert_eq!(found("memory"), expected(Version::V2, &[""]));
        }
        let split = "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        write("9:cpu,cpuacct:/a\n4:memory:/b\n1:name=systemd:/c\n0::/d\n", split);
        assert_eq!(found("memory"), expected(Version::V1, &["/memory/b", "/memory"]));
        assert_eq!(found("cpu"), expected(Version::V1, &["/cpu,cpuacct/a", "/cpu,cpuacct"]));
    }
}
