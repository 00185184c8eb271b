//! Which server holds a bucket, and which history of writes it goes on with.

use crate::Error;

/// The id of no history.
const NONE: char = '0';

/// A server as it names itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Of the process; another one after a restart.
    pub run_id: String,
    /// Of the history of writes. Who starts as a primary, or becomes one, begins a new history, and
    /// may lack the newest writes of the one before; a replica has its primary's. A primary whose
    /// first replica comes, or whose last one stayed away for an hour, renames its own.
    pub replication_id: String,
    /// Whether this history goes on where another one ended.
    pub took_over: bool,
    /// Whether it takes writes; a replica tells nothing about what becomes of the bucket.
    pub is_primary: bool,
}

impl Server {
    /// From the sections `server` and `replication` of `INFO`.
    pub(super) fn parse(info: &str) -> Result<Self, Error> {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| Error::malformed("server info", format!("no {name}")))
        };
        Ok(Self {
            run_id: field("run_id")?.to_owned(),
            replication_id: field("master_replid")?.to_owned(),
            took_over: field("master_replid2")?.chars().any(|digit| digit != NONE),
            is_primary: field("role")? == "master",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nrun_id:r1\r\n\r\n# Replication\r\nrole:master\r\n\
                        master_replid:h1\r\nmaster_replid2:0000\r\n";

    #[test]
    fn a_server_is_read_field_by_field() {
        let server = Server {
            run_id: "r1".to_owned(),
            replication_id: "h1".to_owned(),
            took_over: false,
            is_primary: true,
        };
        assert_eq!(Server::parse(INFO).unwrap(), server);
        let promoted = INFO.replace("replid2:0000", "replid2:00h0");
        assert!(Server::parse(&promoted).unwrap().took_over);
        let replica = INFO.replace("role:master", "role:slave");
        assert!(!Server::parse(&replica).unwrap().is_primary);
        for name in ["run_id", "master_replid", "master_replid2", "role"] {
            let without = INFO.replace(&format!("{name}:"), "other:");
            assert!(Server::parse(&without).is_err(), "{name}");
        }
    }
}
