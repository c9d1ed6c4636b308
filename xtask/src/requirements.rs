//! What the tests need on a machine, and which of Debian's packages brings it. May
//! not install anything.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A program or a file, and the package that it is in.
pub(crate) struct Requirement {
    place: Place,
    pub(crate) package: &'static str,
}

enum Place {
    /// Somewhere in `PATH`, or where Debian keeps servers.
    Program(&'static str),
    File(&'static str),
}

use Place::{File, Program};

const ALL: &[Requirement] = &[
    Requirement { place: Program("redis-server"), package: "redis-server" },
    Requirement { place: Program("postgres"), package: "postgresql" },
    Requirement { place: Program("initdb"), package: "postgresql" },
    Requirement { place: Program("pgbouncer"), package: "pgbouncer" },
    Requirement { place: Program("mariadbd"), package: "mariadb-server" },
    Requirement { place: Program("mariadb-install-db"), package: "mariadb-server" },
    Requirement { place: File("/usr/share/java/zookeeper.jar"), package: "zookeeper" },
    // It judges whether its own locks and ours exclude each other.
    Requirement {
        place: File("/usr/lib/python3/dist-packages/kazoo/recipe/lock.py"),
        package: "python3-kazoo",
    },
    Requirement { place: File("/usr/share/java/slf4j-log4j12.jar"), package: "libslf4j-java" },
    Requirement { place: File("/usr/share/java/log4j-1.2.jar"), package: "liblog4j1.2-java" },
    Requirement { place: Program("java"), package: "default-jre-headless" },
    Requirement { place: Program("etcd"), package: "etcd-server" },
    Requirement { place: Program("etcdctl"), package: "etcd-client" },
    // The etcd client's code is made from these.
    Requirement { place: Program("protoc"), package: "protobuf-compiler" },
    Requirement {
        place: File("/usr/include/google/protobuf/descriptor.proto"),
        package: "libprotobuf-dev",
    },
    // Clocks that can be moved are compiled on the spot.
    Requirement { place: Program("cc"), package: "gcc" },
    Requirement { place: File("/usr/include/stdlib.h"), package: "libc6-dev" },
    // It looks at the page of `lockkit serve`, which needs some font.
    Requirement { place: Program("chromium"), package: "chromium" },
    Requirement {
        place: File("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
        package: "fonts-dejavu-core",
    },
    // The Python client is typed, tested and packed with these.
    Requirement { place: File("/usr/bin/python3"), package: "python3" },
    Requirement {
        place: File("/usr/lib/python3/dist-packages/pytest/__init__.py"),
        package: "python3-pytest",
    },
    Requirement { place: File("/usr/lib/python3/dist-packages/mypy/__init__.py"), package: "mypy" },
    Requirement {
        place: File("/usr/lib/python3/dist-packages/build/__init__.py"),
        package: "python3-build",
    },
    Requirement {
        place: File("/usr/lib/python3/dist-packages/setuptools/__init__.py"),
        package: "python3-setuptools",
    },
    Requirement {
        place: File("/usr/lib/python3/dist-packages/wheel/__init__.py"),
        package: "python3-wheel",
    },
    // It fetches a Valkey and a Terraform.
    Requirement {
        place: File("/usr/lib/python3/dist-packages/pip/__init__.py"),
        package: "python3-pip",
    },
    // Pages of the book ask the lock service with it.
    Requirement { place: Program("curl"), package: "curl" },
    // Recipes of the book are run with these.
    Requirement { place: Program("psql"), package: "postgresql-client" },
    Requirement { place: Program("restic"), package: "restic" },
    Requirement { place: Program("systemd-analyze"), package: "systemd" },
    // The package for Debian is made and checked with these, the formula for Homebrew is read.
    Requirement { place: Program("dpkg-deb"), package: "dpkg" },
    Requirement { place: Program("lintian"), package: "lintian" },
    Requirement { place: Program("strip"), package: "binutils" },
    Requirement { place: Program("ruby"), package: "ruby" },
    // The lab's watchdog speaks these.
    Requirement { place: Program("find"), package: "findutils" },
    Requirement { place: Program("ipcrm"), package: "util-linux" },
];

impl Requirement {
    /// Those that are not met here.
    pub(crate) fn missing() -> Vec<&'static Self> {
        ALL.iter().filter(|requirement| !requirement.is_met()).collect()
    }

    /// What is missing.
    pub(crate) fn name(&self) -> &'static str {
        match self.place {
            Program(name) | File(name) => name,
        }
    }

    fn is_met(&self) -> bool {
        match self.place {
            Program(name) => folders().iter().any(|folder| folder.join(name).is_file()),
            File(path) => Path::new(path).exists(),
        }
    }
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders
}
