//! The configuration and the users of `deploy/redis`, as an installation takes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use seckill_test_support::{OrFail, RedisSetup};

/// The person who may do everything; the test's own view.
const ADMIN: &str = "admin";

/// By whom replicas follow.
const REPLICATION: &str = "replication";

/// The rendered users with a password for each.
#[derive(Debug)]
pub struct RedisUsers {
    file: PathBuf,
    names: Vec<String>,
}

impl RedisUsers {
    /// Gives every user of the shipped file a password and renders the file that Redis reads.
    ///
    /// # Panics
    ///
    /// When the shipped script fails.
    #[must_use]
    pub fn render(folder: &Path) -> Self {
        Self::try_render(folder).or_fail("rendering the shipped Redis users")
    }

    fn try_render(folder: &Path) -> anyhow::Result<Self> {
        let shipped = shipped().join("users.acl");
        let text = std::fs::read_to_string(&shipped)
            .with_context(|| format!("reading {}", shipped.display()))?;
        let names: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("user "))
            .map(|name| name.trim().to_owned())
            .collect();
        let passwords = folder.join("passwords");
        std::fs::create_dir_all(&passwords)?;
        for name in &names {
            std::fs::write(passwords.join(name), Self::password(name))?;
        }
        let output = Command::new(self::shipped().join("render-users"))
            .arg(&passwords)
            .output()
            .context("running render-users")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "render-users: {complaint}");
        let file = folder.join("users.rendered.acl");
        std::fs::write(&file, output.stdout)?;
        Ok(Self { file, names })
    }

    /// A user's password.
    #[must_use]
    pub fn password(user: &str) -> String {
        format!("password-of-{user}")
    }

    /// All users of the shipped file.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A server with the shipped configuration and these users.
    #[must_use]
    pub fn setup(&self) -> RedisSetup {
        let file = self.file.display().to_string();
        let password = Self::password(REPLICATION);
        let arguments = ["--aclfile", &file, "--masterauth", &password];
        RedisSetup {
            arguments: arguments.map(str::to_owned).to_vec(),
            config: Some(shipped().join("redis.conf")),
            login: Some((ADMIN.to_owned(), Self::password(ADMIN))),
        }
    }
}

/// The folder that is shipped.
#[must_use]
pub fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/redis")
}
