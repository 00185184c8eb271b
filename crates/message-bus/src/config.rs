//! What every client of the bus is told.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::ClientConfig;

use crate::Error;

/// How often routes are read again and heartbeats sent: the client refuses less than 10 s, and its
/// default of 30 s would let a new topic or a restarted broker wait that long.
const POLL_INTERVAL_MS: u32 = 10_000;

/// How often consumed offsets are written to the broker; the least that the client accepts. What was
/// consumed since comes again after a crash.
const PERSIST_OFFSET_INTERVAL_MS: u32 = 1_000;

/// The client refuses time limits of its calls below this.
const SEND_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The client refuses time limits of its calls above this.
const SEND_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The broker's limit for names is 255 (groups) and 127 (topics); the longest own name has 33
/// characters with its `%RETRY%` or `%DLQ%` and suffix.
const NAMESPACE_LEN_MAX: usize = 64;

/// The settings that all clients of one process share.
#[derive(Debug, Clone)]
pub struct BusConfig {
    /// The name servers, `host:port` joined by `;`.
    pub namesrv: String,
    /// A prefix for topics and groups: empty in production, unique in a test.
    pub namespace: String,
    /// The time limit of one send, its second attempt included.
    pub send_timeout: Duration,
    /// A readable name of the process and its role. Each client appends what makes it unique.
    pub instance: String,
}

impl BusConfig {
    /// Checks what the client would refuse later with an error that names nothing.
    ///
    /// # Errors
    /// [`Error::Setting`] with the field's name.
    pub fn validate(&self) -> Result<(), Error> {
        let setting = |setting, problem: &str| {
            Err(Error::Setting {
                setting,
                problem: problem.to_owned(),
            })
        };
        if self.namesrv.trim().is_empty() {
            return setting("namesrv", "must not be empty");
        }
        if !self.namesrv.split(';').all(is_address) {
            return setting("namesrv", "must be host:port, several joined by ';'");
        }
        if self.namespace.len() > NAMESPACE_LEN_MAX || !self.namespace.bytes().all(is_name_byte) {
            return setting(
                "namespace",
                "may hold at most 64 letters, digits, '_' and '-'",
            );
        }
        if !(SEND_TIMEOUT_MIN..=SEND_TIMEOUT_MAX).contains(&self.send_timeout) {
            return setting("send_timeout", "must be 100 ms to 60 s");
        }
        Ok(())
    }

    /// The client's own configuration, with an instance name that no other client has.
    pub(crate) fn client_config(&self, role: &str) -> Result<ClientConfig, Error> {
        self.validate()?;
        let mut config = ClientConfig::new();
        config.set_namesrv_addr(self.namesrv.as_str().into());
        config.set_instance_name(self.unique_instance(role).into());
        config.set_poll_name_server_interval(POLL_INTERVAL_MS);
        config.set_heartbeat_broker_interval(POLL_INTERVAL_MS);
        config.set_persist_consumer_offset_interval(PERSIST_OFFSET_INTERVAL_MS);
        Ok(config)
    }

    /// Two clients with one id would be taken for one: some queues would then belong to nobody. Equal
    /// settings, equal process ids in two containers and several clients in one process all happen,
    /// so process id, start time and a counter are joined to the readable name.
    fn unique_instance(&self, role: &str) -> String {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let started = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
        let name: String = self
            .instance
            .chars()
            .filter(|c| !c.is_whitespace())
            .collect();
        format!("{name}-{role}-{}-{started:x}-{client}", process::id())
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn is_address(text: &str) -> bool {
    text.trim()
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn config() -> BusConfig {
        BusConfig {
            namesrv: "127.0.0.1:9876".to_owned(),
            namespace: String::new(),
            send_timeout: Duration::from_secs(3),
            instance: "front-1".to_owned(),
        }
    }

    #[test]
    fn a_wrong_setting_is_named() {
        type Spoil = fn(&mut BusConfig);
        let cases: [(&str, Spoil); 6] = [
            ("namesrv", |c| c.namesrv = String::new()),
            ("namesrv", |c| c.namesrv = "localhost".to_owned()),
            ("namesrv", |c| c.namesrv = "a:1;b:99999".to_owned()),
            ("namespace", |c| c.namespace = "a b".to_owned()),
            ("namespace", |c| c.namespace = "x".repeat(65)),
            ("send_timeout", |c| {
                c.send_timeout = Duration::from_millis(99)
            }),
        ];
        for (name, spoil) in cases {
            let mut config = config();
            spoil(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
        config().validate().unwrap();
    }

    #[test]
    fn equal_settings_still_give_distinct_instances() {
        let names: BTreeSet<String> = (0..100)
            .map(|_| config().unique_instance("consumer"))
            .collect();
        assert_eq!(names.len(), 100);
    }
}
