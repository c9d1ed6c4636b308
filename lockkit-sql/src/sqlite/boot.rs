//! Which run of this machine it is: an id that changes with every boot, since times on the boot
//! clock mean nothing to another boot.

use lockkit_core::{Error, Result};

use super::BACKEND;

/// The id of the running system's boot clock.
///
/// On Linux the kernel's boot id. A process in a time namespace of its own reads another boot
/// clock than its neighbours under the same id, so the offset of the namespace is part of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path);
    let id = id.map_err(|error| unknown(&format!("{path}: {error}; mount /proc")))?;
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Ok(with_offset(id.trim(), &offsets))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn with_offset(id: &str, offsets: &str) -> String {
    let boottime = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    match boottime.map(|offset| offset.split_whitespace().collect::<Vec<_>>()).as_deref() {
        None | Some(["0", "0"]) => id.to_owned(),
        Some(offset) => format!("{id}+{}", offset.join(".")),
    }
}

/// The id of the running system's boot clock: the session id of Apple's kernels, the moment of the
/// boot of the BSDs.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot_id() -> Result<String> {
    let sysctl = |program: &str, name: &str| {
        let output = std::process::Command::new(program).args(["-n", name]).output().ok()?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success() && !id.is_empty()).then_some(id)
    };
    ["kern.bootsessionuuid", "kern.boottime"]
        .iter()
        .find_map(|name| sysctl("/usr/sbin/sysctl", name).or_else(|| sysctl("/sbin/sysctl", name)))
        .ok_or_else(|| unknown("sysctl does not say"))
}

fn unknown(why: &str) -> Error {
    Error::permanent(BACKEND, format!("cannot tell which boot of this machine it is: {why}"))
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn another_time_namespace_is_another_clock() {
        assert_eq!(with_offset("id", ""), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 0 0\n"), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 60 5\n"), "id+60.5");
    }

    #[test]
    fn the_boot_has_an_id_that_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
