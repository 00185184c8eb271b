//! The run file: how scripts and tests find a process and its ports.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What is written; the fields are a contract with scripts and tests.
#[derive(Debug, Serialize)]
struct Content<'a> {
    service: &'a str,
    instance: u32,
    pid: u32,
    grpc_addr: Option<SocketAddr>,
    admin_addr: SocketAddr,
}

/// A run file of this process; removed when dropped.
#[derive(Debug)]
pub(crate) struct RunFile(PathBuf);

impl RunFile {
    /// Writes it whole or not at all: a reader never sees half a file.
    pub(crate) fn write(
        folder: &Path,
        service: &str,
        instance: u32,
        admin_addr: SocketAddr,
        grpc_addr: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let content = Content {
            service,
            instance,
            pid: std::process::id(),
            grpc_addr,
            admin_addr,
        };
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{service}-{instance}.json"));
        let draft = folder.join(format!(".{service}-{instance}.{}", content.pid));
        let mut text = serde_json::to_string(&content)?;
        text.push('\n');
        fs::write(&draft, text)?;
        fs::rename(&draft, &path)?;
        Ok(Self(path))
    }

    /// Whether the file is still this process's own: a successor may have replaced it.
    fn is_own(&self) -> bool {
        let pid = fs::read_to_string(&self.0)
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
            .and_then(|content| content["pid"].as_u64());
        pid == Some(u64::from(std::process::id()))
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        if self.is_own() {
            // Left behind, it names a process that is gone, which readers check anyway.
            let _ = fs::remove_file(&self.0);
        }
    }
}
