//! Kills the front in the middle of the sale and starts it again, as a machine failure would.
//!
//! The process is found by its run file and must still be the one that wrote it: a number alone may
//! belong to somebody else by now. What it was started with is read from `/proc` before it is killed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::report::Kill;

const SERVICE: &str = "reservation-front";

/// The replica that is killed.
const INSTANCE: u32 = 1;

/// How long the killed process may take to vanish; SIGKILL needs milliseconds.
const VANISH_LIMIT: Duration = Duration::from_secs(10);

/// How long its successor may take to be ready, beside a sale that keeps both cores busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Between two looks.
const POLL: Duration = Duration::from_millis(50);

/// Longest answer of `/readyz` that is read; only its first line matters.
const ANSWER_MAX: u64 = 4_096;

/// The run file of a service, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct RunFile {
    service: String,
    pid: u32,
    admin_addr: String,
}

/// A running front and what it was started with.
#[derive(Debug)]
pub struct Front {
    path: PathBuf,
    run_file: RunFile,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    output: Option<PathBuf>,
}

impl Front {
    /// Finds the front of a run folder and reads how it was started.
    ///
    /// # Errors
    /// When it is not there, or the process is not the one that wrote the run file.
    pub fn find(run_dir: &Path) -> anyhow::Result<Self> {
        let path = run_dir.join(format!("{SERVICE}-{INSTANCE}.json"));
        let run_file = read_run_file(&path)?;
        let proc = PathBuf::from(format!("/proc/{}", run_file.pid));
        let program = fs::read_link(proc.join("exe"))
            .with_context(|| format!("reading what process {} runs", run_file.pid))?;
        ensure!(
            is_program(&program, SERVICE) && run_file.service == SERVICE,
            "process {} of {} is no {SERVICE}",
            run_file.pid,
            path.display()
        );
        let written = fs::metadata(&path).and_then(|data| data.modified())?;
        ensure!(
            started_before(&proc, written)?,
            "process {} is younger than {}",
            run_file.pid,
            path.display()
        );
        let arguments = split_nul(&fs::read(proc.join("cmdline"))?);
        let environment = split_nul(&fs::read(proc.join("environ"))?);
        let output = fs::read_link(proc.join("fd/1"))
            .ok()
            .filter(|target| target.is_file());
        Ok(Self {
            program: without_deleted_mark(program),
            arguments: arguments.into_iter().skip(1).collect(),
            environment: environment.into_iter().filter_map(split_pair).collect(),
            folder: fs::read_link(proc.join("cwd"))?,
            output,
            path,
            run_file,
        })
    }

    /// Kills it with SIGKILL, starts it again and waits until the successor is ready.
    ///
    /// # Errors
    /// When it does not vanish, cannot be started or does not become ready in time.
    pub async fn kill_and_restart(self, accepted: u64) -> anyhow::Result<Kill> {
        let started = Instant::now();
        let pid = self.run_file.pid;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)
            .with_context(|| format!("killing process {pid}"))?;
        let vanishing = Deadline::new(VANISH_LIMIT, "the killed front has vanished");
        while !has_ended(pid) {
            vanishing.pause().await?;
        }
        let successor = self.start()?;
        let starting = Deadline::new(READY_LIMIT, "the new front is ready");
        while !self.is_ready(successor).await {
            starting.pause().await?;
        }
        let ready_after_ms = u64::try_from(started.elapsed().as_millis())?;
        Ok(Kill {
            pid,
            successor,
            accepted,
            ready_after_ms,
        })
    }

    async fn is_ready(&self, pid: u32) -> bool {
        match read_run_file(&self.path) {
            Ok(file) if file.pid == pid => answers_ready(&file.admin_addr).await,
            Ok(_) | Err(_) => false,
        }
    }

    fn start(&self) -> anyhow::Result<u32> {
        let output = |open: fn(&Path) -> std::io::Result<File>| {
            self.output
                .as_deref()
                .and_then(|path| open(path).ok())
                .map_or_else(Stdio::null, Stdio::from)
        };
        let append = |path: &Path| OpenOptions::new().append(true).open(path);
        // A group of its own: an interrupt at this terminal is not meant for it. The handle is not
        // needed; the process outlives this one.
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output(append))
            .stderr(output(append))
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        Ok(child.id())
    }
}

fn read_run_file(path: &Path) -> anyhow::Result<RunFile> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("understanding {}", path.display()))
}

/// The executable's path, also when a newer build has replaced the file.
fn without_deleted_mark(program: PathBuf) -> PathBuf {
    match program
        .to_str()
        .and_then(|text| text.strip_suffix(" (deleted)"))
    {
        Some(path) => PathBuf::from(path),
        None => program,
    }
}

fn is_program(program: &Path, name: &str) -> bool {
    without_deleted_mark(program.to_owned())
        .file_name()
        .is_some_and(|file| file == name)
}

fn split_nul(bytes: &[u8]) -> Vec<OsString> {
    let parts = bytes.split(|byte| *byte == 0);
    let mut parts: Vec<OsString> = parts
        .map(|part| OsString::from_vec(part.to_vec()))
        .collect();
    // What follows the last separator is no entry.
    parts.pop();
    parts
}

fn split_pair(entry: OsString) -> Option<(OsString, OsString)> {
    let bytes = entry.into_vec();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let value = OsString::from_vec(bytes[at + 1..].to_vec());
    Some((OsString::from_vec(bytes[..at].to_vec()), value))
}

/// Whether a process was there when a file was written; two seconds cover the rounding of both.
fn started_before(proc: &Path, written: SystemTime) -> anyhow::Result<bool> {
    const ROUNDING_SECONDS: u64 = 2;
    let stat = fs::read_to_string(proc.join("stat"))?;
    let machine = fs::read_to_string("/proc/stat")?;
    let started = started_at(&stat, &machine).context("reading when the process started")?;
    let written = written.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    Ok(started <= written + ROUNDING_SECONDS)
}

/// When a process started, in seconds since the epoch: boot time plus the 22nd field of its stat
/// line, counted behind the name, which may hold blanks and brackets.
fn started_at(stat: &str, machine: &str) -> Option<u64> {
    /// Linux counts in hundredths of a second towards programs, whatever the kernel's own tick.
    const TICKS_PER_SECOND: u64 = 100;
    /// Fields between the name and the start time.
    const SKIPPED: usize = 19;
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split_whitespace().nth(SKIPPED)?.parse().ok()?;
    let boot = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<u64>().ok()? + ticks / TICKS_PER_SECOND)
}

/// Whether a process is gone, or dead and not yet collected by its parent.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The name before the state may hold blanks and brackets; the last one ends it.
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
}

async fn answers_ready(addr: &str) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), ask).await;
    matches!(answer, Ok(Ok(text)) if text.split_whitespace().nth(1) == Some("200"))
}

/// A bounded wait.
struct Deadline {
    started: Instant,
    limit: Duration,
    what: &'static str,
}

impl Deadline {
    fn new(limit: Duration, what: &'static str) -> Self {
        Self {
            started: Instant::now(),
            limit,
            what,
        }
    }

    async fn pause(&self) -> anyhow::Result<()> {
        if self.started.elapsed() > self.limit {
            bail!("gave up after {:?} waiting until {}", self.limit, self.what);
        }
        tokio::time::sleep(POLL).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_was_started_with_is_read_whole() {
        assert_eq!(
            split_nul(b"front\0--a b\0\0x\0"),
            ["front", "--a b", "", "x"]
        );
        assert_eq!(split_nul(b""), [""; 0]);
        assert_eq!(split_pair("A=b=c".into()), Some(("A".into(), "b=c".into())));
        assert_eq!(split_pair("nonsense".into()), None);
    }

    #[test]
    fn the_start_of_a_process_is_counted_from_boot() {
        let fields: Vec<String> = (0..30)
            .map(|n| {
                if n == 19 {
                    "4200".into()
                } else {
                    n.to_string()
                }
            })
            .collect();
        let stat = format!("7 (a (b) c) {}", fields.join(" "));
        assert_eq!(started_at(&stat, "cpu 1\nbtime 1000\n"), Some(1_042));
        assert_eq!(started_at("7", "btime 1000"), None);
        let written = SystemTime::now();
        assert!(started_before(Path::new("/proc/self"), written).unwrap());
        assert!(
            !started_before(
                Path::new("/proc/self"),
                written - Duration::from_secs(86_400)
            )
            .unwrap()
        );
    }

    #[test]
    fn a_replaced_executable_is_still_recognised() {
        assert!(is_program(
            Path::new("/x/reservation-front (deleted)"),
            SERVICE
        ));
        assert!(is_program(Path::new("/x/reservation-front"), SERVICE));
        assert!(!is_program(Path::new("/x/bash"), SERVICE));
    }

    #[test]
    fn a_number_that_belongs_to_another_program_is_not_killed() {
        let dir = std::env::temp_dir().join(format!("seckillctl-crash-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let own = format!(
            r#"{{"service":"{SERVICE}","instance":1,"pid":{},"admin_addr":"127.0.0.1:1"}}"#,
            std::process::id()
        );
        fs::write(dir.join(format!("{SERVICE}-1.json")), own).unwrap();
        let error = Front::find(&dir).unwrap_err().to_string();
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.contains("is no reservation-front"), "{error}");
    }
}
