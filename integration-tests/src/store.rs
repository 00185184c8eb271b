//! The Redis of a sandbox, in each form that an installation may have.

use seckill_test_support::{
    Dump, FaultProxy, Framing, OrFail, PrivateRedis, RedisCluster, RedisPair, TempDir,
};

use crate::users::RedisUsers;

/// Which form it has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One server.
    #[default]
    Single,
    /// A primary with a replica behind an address that moves.
    Pair,
    /// The same with the configuration and the users that are shipped.
    Shipped,
    /// A Cluster of three primaries.
    Cluster,
    /// The same with a replica each.
    ClusterWithReplicas,
}

/// The servers and whatever stands before them.
#[derive(Debug)]
pub(crate) enum Store {
    Single(Box<PrivateRedis>, Option<FaultProxy>),
    /// The folder holds the users; they are there when the form is shipped.
    Pair(Box<RedisPair>, Option<(RedisUsers, TempDir)>),
    Cluster(RedisCluster),
}

impl Store {
    /// Starts it. A proxy is asked for before one server, part of a pair, and impossible for a cluster.
    pub(crate) async fn start(form: Form, arguments: &[String], proxy: bool) -> Self {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match form {
            Form::Single => {
                let server = PrivateRedis::start_with(&arguments).await;
                let proxy = if proxy {
                    Some(FaultProxy::start(server.address(), Framing::Resp).await)
                } else {
                    None
                };
                Self::Single(Box::new(server), proxy)
            }
            Form::Pair => Self::Pair(Box::new(RedisPair::start().await), None),
            Form::Shipped => {
                let folder = TempDir::new("redis-users").or_fail("making the folder of the users");
                let users = RedisUsers::render(folder.path());
                let mut setup = users.setup();
                setup
                    .arguments
                    .extend(arguments.iter().map(ToString::to_string));
                let pair = RedisPair::start_as(&setup).await;
                Self::Pair(Box::new(pair), Some((users, folder)))
            }
            Form::Cluster | Form::ClusterWithReplicas if proxy => {
                panic!("no proxy in front of a cluster")
            }
            Form::Cluster => Self::Cluster(PrivateRedis::start_cluster().await),
            Form::ClusterWithReplicas => {
                Self::Cluster(PrivateRedis::start_cluster_with_replicas().await)
            }
        }
    }

    /// Where services find it, each as its own user when there are users.
    pub(crate) fn url_of(&self, service: &str) -> String {
        match self {
            Self::Single(_, Some(proxy)) => format!("redis://{}", proxy.addr()),
            Self::Single(server, None) => server.url(),
            Self::Pair(pair, None) => pair.url(),
            Self::Pair(pair, Some(_)) => pair.url_as(service, &RedisUsers::password(service)),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Where operators find it: past all proxies.
    pub(crate) fn operators_url(&self, tool: &str) -> String {
        match self {
            Self::Single(server, _) => server.url(),
            Self::Pair(pair, None) => pair.primary().url(),
            Self::Pair(pair, Some(_)) => pair.primary().url_as(tool, &RedisUsers::password(tool)),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Every key.
    pub(crate) async fn dump(&self) -> Dump {
        match self {
            Self::Single(server, _) => server.dump().await,
            Self::Pair(pair, _) => pair.primary().dump().await,
            Self::Cluster(cluster) => cluster.dump().await,
        }
    }

    /// The server that takes the writes.
    pub(crate) fn server(&self) -> &PrivateRedis {
        match self {
            Self::Single(server, _) => server,
            Self::Pair(pair, _) => pair.primary(),
            Self::Cluster(_) => panic!("this sandbox has a cluster"),
        }
    }

    pub(crate) fn pair(&self) -> &RedisPair {
        match self {
            Self::Pair(pair, _) => pair,
            _ => panic!("this sandbox was built without replicated()"),
        }
    }

    pub(crate) fn cluster(&self) -> &RedisCluster {
        match self {
            Self::Cluster(cluster) => cluster,
            _ => panic!("this sandbox has no cluster"),
        }
    }

    pub(crate) fn proxy(&self) -> &FaultProxy {
        match self {
            Self::Single(_, Some(proxy)) => proxy,
            Self::Pair(pair, _) => pair.proxy(),
            _ => panic!("this sandbox was built without redis_proxy()"),
        }
    }
}
