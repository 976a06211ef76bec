//! A connection to NATS, and the streams and buckets that jobs need there.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config as StreamConfig, DiscardPolicy, RetentionPolicy, StorageType, Stream,
};
use async_nats::jetstream::{self, ErrorCode, kv, object_store};
use async_nats::{ConnectErrorKind, ConnectOptions};

use super::Boxed;
use super::error::NatsError;
use crate::unit::Task;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the server waits for a sign of life, until a worker says otherwise.
const ACK_WAIT: Duration = Duration::from_secs(60);

/// Where NATS is and who we are.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Addresses, with commas between them.
    pub url: String,
    /// File of credentials (JWT and seed).
    pub creds: Option<PathBuf>,
    /// File with an nkey seed.
    pub nkey: Option<PathBuf>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Token.
    pub token: Option<String>,
    /// Root certificates besides the system's.
    pub tls_ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub tls_cert: Option<(PathBuf, PathBuf)>,
    /// Refuse connections without TLS.
    pub tls: bool,
    /// TLS before the server's first word.
    pub tls_first: bool,
    /// What subjects, streams and buckets begin with.
    pub prefix: String,
    /// Domain of a leaf node's JetStream.
    pub domain: Option<String>,
    /// Our name in the server's lists.
    pub name: String,
}

/// How streams and buckets are made where they are not there yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamOptions {
    /// Copies that a cluster keeps.
    pub replicas: usize,
    /// In memory, not in files.
    pub memory: bool,
    /// How long states, results and dead letters are kept.
    pub keep: Duration,
    /// Within which a job that is submitted twice is taken once by the queue itself.
    pub duplicates: Duration,
    /// Bytes of inputs, and of results, that the object store may hold; no limit where absent.
    pub object_bytes: Option<u64>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            memory: false,
            keep: Duration::from_secs(7 * 86_400),
            duplicates: Duration::from_secs(120),
            object_bytes: None,
        }
    }
}

/// A connection, and the names of what belongs to jobs.
#[derive(Clone)]
pub struct Link {
    pub(super) context: jetstream::Context,
    url: String,
    prefix: String,
}

impl Link {
    /// Connects, and makes sure that there is JetStream.
    pub fn open(options: &LinkOptions) -> Boxed<'_, Result<Self, NatsError>> {
        Box::pin(async move {
            let good = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            if options.prefix.is_empty() || !options.prefix.chars().all(good) {
                return Err(NatsError::Prefix(options.prefix.clone()));
            }
            let url = options.url.clone();
            let servers: Vec<String> = url.split(',').map(|s| s.trim().to_owned()).collect();
            let client = connect_options(options)?.connect(servers).await.map_err(|e| match e.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    NatsError::Credentials { url: url.clone() }
                }
                _ => NatsError::Unreachable { url: url.clone(), reason: e.to_string() },
            })?;
            let mut context = match &options.domain {
                Some(domain) => jetstream::with_domain(client, domain),
                None => jetstream::new(client),
            };
            context.set_timeout(PATIENCE);
            let no = |e: async_nats::jetstream::context::AccountError| NatsError::NoJetStream {
                url: url.clone(),
                reason: e.to_string(),
            };
            context.query_account().await.map_err(no)?;
            Ok(Self { context, url, prefix: options.prefix.clone() })
        })
    }

    /// The address.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn upper(&self) -> String {
        self.prefix.to_uppercase()
    }

    /// The work queue's name.
    pub fn queue_name(&self) -> String {
        format!("{}_JOBS", self.upper())
    }

    /// The dead letters' name.
    pub fn dead_name(&self) -> String {
        format!("{}_DEAD", self.upper())
    }

    /// The subject of jobs for a model.
    pub fn subject(&self, task: Task, model: &str) -> String {
        format!("{}.jobs.{}", self.prefix, kind(task, model))
    }

    /// The subject of a dead letter.
    pub fn dead_subject(&self, id: &str) -> String {
        format!("{}.dead.{id}", self.prefix)
    }

    fn bucket(&self, what: &str) -> String {
        format!("{}_{what}", self.prefix)
    }

    /// Streams and buckets, made where they are not there.
    pub fn prepare<'a>(&'a self, options: &'a StreamOptions) -> Boxed<'a, Result<(), NatsError>> {
        Box::pin(async move {
            let storage = if options.memory { StorageType::Memory } else { StorageType::File };
            let queue = StreamConfig {
                name: self.queue_name(),
                description: Some("Jobs of voce: each is taken once".into()),
                subjects: vec![format!("{}.jobs.>", self.prefix)],
                retention: RetentionPolicy::WorkQueue,
                discard: DiscardPolicy::New,
                duplicate_window: options.duplicates,
                num_replicas: options.replicas,
                storage,
                ..Default::default()
            };
            self.stream(queue).await?;
            let dead = StreamConfig {
                name: self.dead_name(),
                description: Some("Jobs of voce that failed for good".into()),
                subjects: vec![format!("{}.dead.>", self.prefix)],
                retention: RetentionPolicy::Limits,
                max_age: options.keep,
                max_messages_per_subject: 1,
                num_replicas: options.replicas,
                storage,
                ..Default::default()
            };
            self.stream(dead).await?;
            if self.states().await.is_err() {
                let config = kv::Config {
                    bucket: self.bucket("jobs"),
                    description: "States of voce's jobs".into(),
                    history: 1,
                    max_age: options.keep,
                    num_replicas: options.replicas,
                    storage,
                    ..Default::default()
                };
                let made = self.context.create_key_value(config).await;
                made.map_err(NatsError::step("cannot make the bucket of states"))?;
            }
            for what in [INPUTS, RESULTS, CHECKPOINTS] {
                if self.objects(what).await.is_err() {
                    let config = object_store::Config {
                        bucket: self.bucket(what),
                        max_age: options.keep,
                        max_bytes: options.object_bytes.map_or(-1, |b| i64::try_from(b).unwrap_or(i64::MAX)),
                        num_replicas: options.replicas,
                        storage,
                        ..Default::default()
                    };
                    let made = self.context.create_object_store(config).await;
                    made.map_err(NatsError::step("cannot make a bucket of the object store"))?;
                }
            }
            Ok(())
        })
    }

    /// A stream of this kind: made, or found and compared.
    async fn stream(&self, config: StreamConfig) -> Result<Stream, NatsError> {
        let name = config.name.clone();
        let found = match self.context.get_stream(&name).await {
            Ok(stream) => stream,
            Err(e) => match e.kind() {
                GetStreamErrorKind::JetStream(e) if e.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    return self.context.create_stream(config).await.map_err(|e| match e.kind() {
                        CreateStreamErrorKind::JetStream(inner)
                            if inner.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP =>
                        {
                            let what = "another stream has its subjects".into();
                            NatsError::OtherStream { name: name.clone(), what }
                        }
                        _ => NatsError::Step { what: "cannot make a stream", reason: e.to_string() },
                    });
                }
                _ => return Err(NatsError::Step { what: "cannot look for a stream", reason: e.to_string() }),
            },
        };
        let has = &found.cached_info().config;
        let what = if has.retention != config.retention {
            Some(format!("its retention is {:?}, {:?} is needed", has.retention, config.retention))
        } else if has.subjects != config.subjects {
            Some(format!(
                "its subjects are {}, {} are needed",
                has.subjects.join(" "),
                config.subjects.join(" ")
            ))
        } else {
            None
        };
        match what {
            Some(what) => Err(NatsError::OtherStream { name, what }),
            None => Ok(found),
        }
    }

    /// The consumer of a model's workers.
    pub(super) async fn consumer(
        &self,
        task: Task,
        model: &str,
        ack_wait: Duration,
    ) -> Result<PullConsumer, NatsError> {
        let queue = self.queue().await?;
        let made = queue.create_consumer(self.consumer_config(task, model, ack_wait)).await;
        made.map_err(NatsError::step("cannot make the workers' consumer"))
    }

    /// The consumer of a model's workers, made where there is none yet.
    pub(super) async fn announce(&self, task: Task, model: &str) -> Result<(), NatsError> {
        let queue = self.queue().await?;
        let config = self.consumer_config(task, model, ACK_WAIT);
        let name = config.durable_name.clone().unwrap_or_default();
        let made = queue.get_or_create_consumer(&name, config).await;
        made.map(drop).map_err(NatsError::step("cannot make the workers' consumer"))
    }

    async fn queue(&self) -> Result<Stream, NatsError> {
        let queue = self.context.get_stream(self.queue_name()).await;
        queue.map_err(NatsError::step("cannot find the queue"))
    }

    fn consumer_config(&self, task: Task, model: &str, ack_wait: Duration) -> pull::Config {
        pull::Config {
            durable_name: Some(kind(task, model).replace('.', "-")),
            description: Some("Workers of voce".into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            // Tries are counted by workers, who tell the dead letters why.
            max_deliver: -1,
            max_ack_pending: -1,
            filter_subject: self.subject(task, model),
            ..Default::default()
        }
    }

    /// The bucket of states.
    pub(super) async fn states(&self) -> Result<kv::Store, NatsError> {
        let bucket = self.context.get_key_value(self.bucket("jobs")).await;
        bucket.map_err(NatsError::step(
            "cannot find the bucket of states: submit a job or start a worker first",
        ))
    }

    /// A bucket of the object store.
    pub(super) async fn objects(&self, what: &str) -> Result<object_store::ObjectStore, NatsError> {
        let bucket = self.context.get_object_store(self.bucket(what)).await;
        bucket.map_err(NatsError::step("cannot find a bucket of the object store"))
    }
}

/// Buckets of the object store.
pub(super) const INPUTS: &str = "inputs";
pub(super) const RESULTS: &str = "results";
pub(super) const CHECKPOINTS: &str = "checkpoints";

/// What jobs of one kind have in common: the task and the model, as a subject has them.
fn kind(task: Task, model: &str) -> String {
    let task = match task {
        Task::Hear => "hear",
        Task::Say => "say",
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let model: String = model.chars().map(plain).collect();
    format!("{task}.{model}")
}

fn connect_options(options: &LinkOptions) -> Result<ConnectOptions, NatsError> {
    let read = |path: &PathBuf| {
        let bad = |e: std::io::Error| NatsError::File { path: path.clone(), reason: e.to_string() };
        std::fs::read_to_string(path).map_err(bad)
    };
    let mut connect = ConnectOptions::new().name(&options.name).request_timeout(Some(PATIENCE));
    if let Some(path) = &options.creds {
        let bad = |e: std::io::Error| NatsError::File { path: path.clone(), reason: e.to_string() };
        connect = connect.credentials(&read(path)?).map_err(bad)?;
    }
    if let Some(path) = &options.nkey {
        connect = connect.nkey(read(path)?.trim().to_owned());
    }
    if let Some((user, password)) = &options.user {
        connect = connect.user_and_password(user.clone(), password.clone());
    }
    if let Some(token) = &options.token {
        connect = connect.token(token.clone());
    }
    for path in options.tls_ca.iter().chain(options.tls_cert.iter().flat_map(|(cert, key)| [cert, key])) {
        // Told by name now, not as a failed connection later.
        read(path)?;
    }
    if let Some(ca) = &options.tls_ca {
        connect = connect.add_root_certificates(ca.clone());
    }
    if let Some((cert, key)) = &options.tls_cert {
        connect = connect.add_client_certificate(cert.clone(), key.clone());
    }
    if options.tls {
        connect = connect.require_tls(true);
    }
    if options.tls_first {
        connect = connect.tls_first();
    }
    Ok(connect)
}
