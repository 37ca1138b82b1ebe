//! The CPUs that this process may really use: its affinity, and the quota of its control groups.
//!
//! The standard library counts both, but looks for version 2 in one place only, and cannot be shown a fixture.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The CPUs that this thread may use.
///
/// # Errors
///
/// The system does not say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
        .collect())
}

/// Pins the calling thread to the `place`-th of its CPUs; one that has fewer stays where it is.
///
/// # Errors
///
/// The system refuses.
pub fn pin(place: usize) -> io::Result<()> {
    let Some(&cpu) = allowed()?.get(place) else {
        return Ok(());
    };
    let mut one = CpuSet::new();
    one.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}

/// How many CPUs this process may keep busy: those of its affinity, and no more than its quota pays for; at least 1.
#[must_use]
pub fn available() -> usize {
    let allowed = allowed().map_or(1, |cpus| cpus.len());
    quota().map_or(allowed, |quota| allowed.min(quota.whole()))
}

/// CPU time that a control group may use in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of all CPUs together, in microseconds.
    pub time_us: u64,
    /// In microseconds.
    pub period_us: u64,
}

impl Quota {
    fn new(time: &str, period: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse().ok().filter(|number| *number > 0);
        Some(Self {
            time_us: number(time)?,
            period_us: number(period)?,
        })
    }

    /// How many CPUs it keeps busy all the time: rounded down, at least 1.
    #[must_use]
    pub fn whole(self) -> usize {
        usize::try_from(self.time_us / self.period_us).map_or(usize::MAX, |cpus| cpus.max(1))
    }

    fn tighter(self, other: Self) -> Self {
        let product = |time: u64, period: u64| u128::from(time) * u128::from(period);
        if product(self.time_us, other.period_us) <= product(other.time_us, self.period_us) {
            self
        } else {
            other
        }
    }
}

/// The tightest quota of the control groups of this process and their ancestors; none if there is none, or if nothing
/// can be read.
#[must_use]
pub fn quota() -> Option<Quota> {
    quota_under(Path::new("/"))
}

/// As [`quota`], with another folder for `/`.
#[must_use]
pub fn quota_under(root: &Path) -> Option<Quota> {
    // Mount points need not be UTF-8; one odd name must not hide the others.
    let read = |path: &str| {
        let bytes = fs::read(root.join(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    groups
        .lines()
        .filter_map(member)
        .flat_map(|(version, group)| {
            mounts
                .iter()
                .filter(move |mount| mount.version == version)
                .flat_map(move |mount| mount.folders(root, group))
                .filter_map(move |folder| version.quota(&folder))
        })
        .reduce(Quota::tighter)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn quota(self, folder: &Path) -> Option<Quota> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        match self {
            Self::One => Quota::new(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
            Self::Two => read("cpu.max")?
                .trim()
                .split_once(' ')
                .and_then(|(time, period)| Quota::new(time, period)),
        }
    }
}

/// A line of `/proc/self/cgroup` that can limit CPU time: `4:cpu,cpuacct:/group` or `0::/group`.
fn member(line: &str) -> Option<(Version, &Path)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match controllers {
        "" => Version::Two,
        list if list.split(',').any(|name| name == "cpu") => Version::One,
        _ => return None,
    };
    Some((version, Path::new(group)))
}

/// Where a hierarchy of control groups is mounted.
#[derive(Debug)]
struct Mount {
    version: Version,
    /// The group that the mount point shows.
    top: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`: `36 25 0:31 TOP POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`.
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let version = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", options) if options.split(',').any(|name| name == "cpu") => Version::One,
            _ => return None,
        };
        let mut place = place.split(' ').skip(3);
        let (top, point) = (unescape(place.next()?), unescape(place.next()?));
        Some(Self {
            version,
            top: top.into(),
            point: point.into(),
        })
    }

    /// The folders of `group` and of all its ancestors that this mount shows.
    fn folders(&self, root: &Path, group: &Path) -> Vec<PathBuf> {
        // Outside of this process's namespace a path begins with `..`, and says nothing about the folders.
        let Some(below) = group.strip_prefix(&self.top).ok().filter(|below| {
            below
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
        }) else {
            return Vec::new();
        };
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        below.ancestors().map(|group| point.join(group)).collect()
    }
}

/// Blanks in the paths of `mountinfo` are written as octal numbers.
fn unescape(path: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(path.to_owned(), |path, (code, sign)| {
        path.replace(code, sign)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str =
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
    const V2: &str =
        "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn found(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = tempfile::tempdir().expect("a temporary folder");
        let fixed = [
            ("proc/self/cgroup", groups),
            ("proc/self/mountinfo", mounts),
        ];
        for (path, text) in fixed.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        quota_under(root.path()).map(|quota| (quota.time_us, quota.period_us))
    }

    #[test]
    fn version_1_gives_quota_and_period_in_two_files() {
        let at = "sys/fs/cgroup/cpu,cpuacct/job";
        let (quota, period) = (
            format!("{at}/cpu.cfs_quota_us"),
            format!("{at}/cpu.cfs_period_us"),
        );
        let tried = |time| {
            found(
                "5:memory:/elsewhere\n4:cpu,cpuacct:/job\n",
                V1,
                &[(&quota, time), (&period, "100000\n")],
            )
        };
        assert_eq!(tried("150000\n"), Some((150_000, 100_000)));
        assert_eq!(tried("-1\n"), None);
        assert_eq!(tried("0\n"), None);
        assert_eq!(tried("plenty\n"), None);
        assert_eq!(
            found("4:cpu,cpuacct:/job\n", V1, &[(&quota, "150000")]),
            None
        );
    }

    #[test]
    fn version_2_gives_both_in_one_file() {
        let tried = |text| found("0::/job\n", V2, &[("sys/fs/cgroup/job/cpu.max", text)]);
        assert_eq!(tried("250000 100000\n"), Some((250_000, 100_000)));
        for none in [
            "max 100000\n",
            "",
            "100000\n",
            "1 0\n",
            "a b\n",
            "-5 100000\n",
        ] {
            assert_eq!(tried(none), None, "{none}");
        }
    }

    #[test]
    fn the_tightest_ancestor_counts_even_with_another_period() {
        let nested = |outer, inner| {
            found(
                "0::/pods/job/rank\n",
                V2,
                &[
                    ("sys/fs/cgroup/pods/cpu.max", outer),
                    ("sys/fs/cgroup/pods/job/cpu.max", inner),
                    ("sys/fs/cgroup/pods/job/rank/cpu.max", "max 100000"),
                    ("sys/fs/cgroup/pods/other/cpu.max", "1 100000"),
                ],
            )
        };
        assert_eq!(
            nested("30000 20000", "200000 100000"),
            Some((30_000, 20_000))
        );
        assert_eq!(
            nested("400000 100000", "15000 10000"),
            Some((15_000, 10_000))
        );
    }

    #[test]
    fn in_a_namespace_the_group_is_the_top_of_the_mount() {
        let files = [("sys/fs/cgroup/cpu.max", "100000 100000")];
        assert_eq!(found("0::/\n", V2, &files), Some((100_000, 100_000)));
    }

    #[test]
    fn without_a_namespace_a_container_sees_its_group_at_the_mount_point() {
        let mount =
            "50 40 0:30 /docker/abc /sys/fs/cgroup/cpu ro master:9 - cgroup cgroup rw,cpu\n";
        let files = [
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ];
        let tried = |group| found(group, mount, &files);
        assert_eq!(tried("3:cpu:/docker/abc\n"), Some((50_000, 100_000)));
        assert_eq!(tried("3:cpu:/docker/abcd\n"), None);
        assert_eq!(tried("3:cpu:/\n"), None);
    }

    #[test]
    fn in_a_hybrid_layout_both_versions_count() {
        let unified = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified");
        let files = [
            ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000"),
            ("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/unified/job/cpu.max", "200000 100000"),
        ];
        let tried = |files| {
            found(
                "4:cpu,cpuacct:/job\n0::/job\n",
                &(V1.to_owned() + &unified),
                files,
            )
        };
        assert_eq!(tried(&files), Some((200_000, 100_000)));
        assert_eq!(tried(&files[..2]), Some((300_000, 100_000)));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let empty = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(quota_under(empty.path()), None);
        let files = [("sys/fs/cgroup/cpu.max", "100000 100000")];
        for (groups, mounts) in [
            ("", V2),
            ("0::/\n", ""),
            ("nonsense\n::\n", V2),
            ("0::/\n", "nonsense - cgroup2\n1 2 3 - cgroup2 x y\n"),
            ("0::/../outside\n", V2),
            (
                "0::/\n",
                "41 31 0:38 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
        ] {
            assert_eq!(found(groups, mounts, &files), None, "{groups} {mounts}");
        }
    }

    #[test]
    fn a_mount_point_may_have_blanks() {
        let mount = V2.replace("/sys/fs/cgroup", "/my\\040groups");
        let files = [("my groups/job/cpu.max", "100000 100000")];
        assert_eq!(found("0::/job\n", &mount, &files), Some((100_000, 100_000)));
    }

    #[test]
    fn whole_cpus_are_rounded_down_and_never_none() {
        for (time_us, cpus) in [
            (1, 1),
            (99_999, 1),
            (100_000, 1),
            (199_999, 1),
            (200_000, 2),
        ] {
            let quota = Quota {
                time_us,
                period_us: 100_000,
            };
            assert_eq!(quota.whole(), cpus);
        }
        assert!(available() >= 1);
    }
}
