//! The processes: two of every service, each of which may be gone or stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use seckill_integration_tests::Service;
use seckill_test_support::{ServiceBuilder, ServiceProcess};

use crate::installation::Installation;
use crate::plan::REPLICAS;

/// A start takes a second; this is for a machine that compiles at the same time.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// One replica of one service, process after process.
pub(crate) struct Replica {
    name: String,
    service: Service,
    settings: ServiceBuilder,
    process: Mutex<Option<ServiceProcess>>,
    log: PathBuf,
}

impl Replica {
    fn process(&self) -> MutexGuard<'_, Option<ServiceProcess>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Kills it and returns the pid of the process that is no more, if one ran.
    pub(crate) fn kill(&self) -> Option<u32> {
        let process = self.process().take()?;
        let was_running = process.is_running();
        process.kill();
        was_running.then(|| process.pid())
    }

    /// Starts a process in place of one that was killed. It gets ready by itself.
    pub(crate) fn start(&self) {
        *self.process() = Some(self.settings.spawn());
    }

    /// Does something with its process, if it runs.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&ServiceProcess) -> T) -> Option<T> {
        let process = self.process();
        process.as_ref().filter(|one| one.is_running()).map(act)
    }

    /// Where it answers gRPC, once it does.
    fn grpc_addr(&self) -> Option<SocketAddr> {
        self.with(ServiceProcess::run_file)??.grpc_addr
    }

    /// Where it tells of itself, once it does.
    pub(crate) fn admin_addr(&self) -> Option<SocketAddr> {
        Some(self.with(ServiceProcess::run_file)??.admin_addr)
    }
}

/// All replicas.
pub(crate) struct Replicas {
    replicas: Vec<Replica>,
}

impl Replicas {
    /// Starts them and awaits that all are ready.
    pub(crate) async fn start(installation: &Installation) -> anyhow::Result<Self> {
        let mut replicas = Vec::new();
        for service in Service::ALL {
            for instance in (1..).take(REPLICAS) {
                let name = format!("{}-{instance}", service.name());
                replicas.push(Replica {
                    log: installation.folder().join(format!("{name}.log")),
                    name,
                    service,
                    settings: installation.service(service, instance),
                    process: Mutex::new(None),
                });
            }
        }
        let replicas = Self { replicas };
        for replica in &replicas.replicas {
            replica.start();
        }
        replicas.await_ready().await?;
        Ok(replicas)
    }

    pub(crate) fn get(&self, index: usize) -> anyhow::Result<&Replica> {
        self.replicas.get(index).context("no such replica")
    }

    /// The fronts that can be called now.
    pub(crate) fn fronts(&self) -> Vec<SocketAddr> {
        let fronts = self.replicas.iter();
        fronts
            .filter(|replica| replica.service == Service::Front)
            .filter_map(Replica::grpc_addr)
            .collect()
    }

    /// Awaits that every process runs and is ready.
    pub(crate) async fn await_ready(&self) -> anyhow::Result<()> {
        let end = tokio::time::Instant::now() + START_DEADLINE;
        for replica in &self.replicas {
            loop {
                let ready = match replica.admin_addr() {
                    Some(addr) => seckill_test_support::http_get(addr, "/readyz")
                        .await
                        .is_ok_and(|reply| reply.status == 200),
                    None => false,
                };
                if ready {
                    break;
                }
                anyhow::ensure!(
                    tokio::time::Instant::now() < end,
                    "{} is not ready, see {}",
                    replica.name,
                    replica.log.display()
                );
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// The names of those whose process has ended though nobody killed it.
    pub(crate) fn dead(&self) -> Vec<&str> {
        let replicas = self.replicas.iter();
        replicas
            .filter(|replica| replica.with(|_| ()).is_none())
            .map(Replica::name)
            .collect()
    }

    /// The logs of all of them.
    pub(crate) fn logs(&self) -> impl Iterator<Item = (&str, &PathBuf)> {
        let replicas = self.replicas.iter();
        replicas.map(|replica| (replica.name(), &replica.log))
    }
}
