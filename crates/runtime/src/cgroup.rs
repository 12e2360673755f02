//! The control group of this process, as Linux shows it in files.

use std::fs;
use std::path::{Path, PathBuf};

/// The version of a control group's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// Returns the folders of this process's control groups, with their ancestors, that may limit
/// `controller` (`memory`, `cpu`). `root` is the root of the file system.
///
/// A limit of any folder holds. A container may show only the end of the path: then missing folders are
/// left out, and the folder at which the hierarchy is mounted is the container's own.
pub(crate) fn folders(root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().flat_map(|line| folders_of(root, line, controller)).collect()
}

/// Returns the folders of a line: `0::/path` or `number:controller,controller:/path`.
fn folders_of(root: &Path, line: &str, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let mounted = root.join("sys/fs/cgroup");
    let (version, mounts) = match controllers {
        // Systems with both versions mount the second one in a folder of its own.
        "" => (Version::V2, [mounted.join("unified"), mounted]),
        names if names.split(',').any(|name| name == controller) => {
            (Version::V1, [mounted.join(controller), mounted.join(names)])
        }
        _ => return Vec::new(),
    };
    let Some(mount) = mounts.into_iter().find(|mount| mount.is_dir()) else { return Vec::new() };
    let path = Path::new(path.trim_start_matches('/'));
    let folders = path.ancestors().map(|folder| mount.join(folder));
    folders.filter(|folder| folder.is_dir()).map(|folder| (version, folder)).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn folders_lead_from_the_process_to_the_root() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let found = |controller: &str| -> Vec<(Version, String)> {
            let folders = folders(root.path(), controller).into_iter();
            let name = |folder: &Path| folder.strip_prefix(root.path()).unwrap().to_owned();
            folders.map(|(version, path)| (version, name(&path).display().to_string())).collect()
        };
        assert_eq!(found("memory"), []);
        write("proc/self/cgroup", "0::/user.slice/app\n");
        assert_eq!(found("memory"), []);
        write("sys/fs/cgroup/user.slice/app/memory.max", "max\n");
        let expected =
            ["sys/fs/cgroup/user.slice/app", "sys/fs/cgroup/user.slice", "sys/fs/cgroup"];
        assert_eq!(found("cpu"), expected.map(|path| (Version::V2, path.to_owned())));
        // The path of the machine, which a container does not see.
        write("proc/self/cgroup", "0::/docker/0123\n");
        assert_eq!(found("memory"), [(Version::V2, "sys/fs/cgroup".to_owned())]);
        write("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/b\n1:name=systemd:/c\n0::/d\n");
        write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1\n");
        write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "1\n");
        write("sys/fs/cgroup/unified/d/cgroup.procs", "1\n");
        let unified = ["unified/d", "unified"].map(|path| (Version::V2, path));
        for (controller, first) in
            [("memory", ["memory/b", "memory"]), ("cpu", ["cpu,cpuacct/a", "cpu,cpuacct"])]
        {
            let expected = first.map(|path| (Version::V1, path)).into_iter().chain(unified);
            let expected =
                expected.map(|(version, path)| (version, format!("sys/fs/cgroup/{path}")));
            assert_eq!(found(controller), expected.collect::<Vec<_>>());
        }
    }
}
