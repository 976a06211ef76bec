//! The hub's HTTP interface: looking up a revision, a file's hash and size, and a range of its bytes.
//!
//! Redirects are followed by hand, since the access token may go to the hub but to no other host.

use std::io::Read as _;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use super::catalogue::HubFile;
use super::digest::clean_etag;
use super::error::StoreError;
use super::reference::{RepoId, is_commit};
use super::settings::Settings;

/// Requests that one answer may take, redirects included.
pub const MAX_REDIRECTS: usize = 6;
/// The longest JSON reply that is read.
pub const MAX_JSON: u64 = 16 << 20;
/// The most files of one repository.
pub const MAX_FILES: usize = 20_000;

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Trying again would not help.
    Fatal(StoreError),
    /// Worth another try, after the wait the server asked for.
    Retry { wait: Option<Duration>, reason: String },
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Fatal(error)
    }
}

/// What the hub says about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileMeta {
    pub(super) etag: String,
    pub(super) size: u64,
}

/// What the hub says about a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RevisionInfo {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

#[derive(Deserialize)]
struct RevisionReply {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A connection to the hub.
pub(super) struct Hub<'a> {
    settings: &'a Settings,
    agent: Agent,
    origin: Option<Origin>,
}

type Origin = (String, String, u16);

impl<'a> Hub<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        let origin = settings.endpoint.parse::<Uri>().ok().as_ref().and_then(origin);
        let patience = &settings.patience;
        let loopback = origin
            .as_ref()
            .is_some_and(|(_, host, _)| matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]"));
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("voce/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.silence))
            .timeout_per_read(Some(patience.silence));
        if loopback {
            config = config.proxy(None);
        }
        Self { settings, agent: config.build().new_agent(), origin }
    }

    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    fn is_hub(&self, url: &Uri) -> bool {
        self.origin.is_some() && origin(url) == self.origin
    }

    fn send(&self, head: bool, url: &Uri, range: Option<u64>) -> Result<Response<Body>, Trouble> {
        let mut request = if head { self.agent.head(url) } else { self.agent.get(url) };
        request = request.header("Accept-Encoding", "identity");
        if let Some(from) = range {
            request = request.header("Range", format!("bytes={from}-"));
        }
        if let (Some(token), true) = (&self.settings.token, self.is_hub(url)) {
            request = request.header("Authorization", format!("Bearer {}", token.secret()));
        }
        request.call().map_err(|error| self.transport(url, error))
    }

    fn transport(&self, url: &Uri, error: ureq::Error) -> Trouble {
        let host = url.host().unwrap_or("?");
        let reason = format!("{host}: {error}");
        match error {
            ureq::Error::Rustls(_)
            | ureq::Error::BadUri(_)
            | ureq::Error::Http(_)
            | ureq::Error::InvalidProxyUrl => Trouble::Fatal(StoreError::Network { what: bare(url), reason }),
            _ => Trouble::Retry { wait: None, reason },
        }
    }

    /// The address of the next hop, or `None` where `response` is the last.
    fn next_hop(&self, url: &Uri, response: &Response<Body>) -> Result<Option<Uri>, Trouble> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let bad = |reason: &str| StoreError::BadReply { what: bare(url), reason: reason.to_owned() };
        let location = header(response, "location").ok_or_else(|| bad("a redirect without a location"))?;
        let next = join(url, location).ok_or_else(|| bad("a redirect to nowhere"))?;
        match (url.scheme_str(), next.scheme_str()) {
            (_, Some("https")) | (Some("http"), Some("http")) => Ok(Some(next)),
            _ => Err(bad("a redirect away from https").into()),
        }
    }

    fn refuse(&self, url: &Uri, repo: &RepoId, what: &str, response: &Response<Body>) -> Trouble {
        let status = response.status().as_u16();
        let host = url.host().unwrap_or("?").to_owned();
        let missing = ["RepoNotFound", "RevisionNotFound", "EntryNotFound"];
        let code = header(response, "x-error-code").unwrap_or("");
        let endpoint = self.settings.endpoint.clone();
        let wait = header(response, "retry-after").and_then(|text| text.trim().parse().ok());
        match status {
            404 | 410 => StoreError::NotFound { what: what.to_owned(), endpoint }.into(),
            401 | 403 if missing.contains(&code) && self.settings.token.is_some() => {
                StoreError::NotFound { what: what.to_owned(), endpoint }.into()
            }
            401 | 403 if self.is_hub(url) => {
                let page = format!("{endpoint}/{repo}");
                StoreError::Gated { repo: repo.clone(), status, page }.into()
            }
            408 | 425 | 429 | 500..=599 | 401 | 403 => match wait {
                Some(seconds) if seconds > self.settings.patience.longest_wait.as_secs() => {
                    StoreError::RateLimited { host, seconds }.into()
                }
                wait => Trouble::Retry {
                    wait: wait.map(Duration::from_secs),
                    reason: format!("{host} answered HTTP {status}"),
                },
            },
            _ => StoreError::BadReply {
                what: what.to_owned(),
                reason: format!("{host} answered HTTP {status}"),
            }
            .into(),
        }
    }

    /// Looks up which commit a branch or tag stands for, and the files it has.
    pub(super) fn revision(&self, repo: &RepoId, revision: &str) -> Result<RevisionInfo, Trouble> {
        let what = format!("{repo}@{revision}");
        let path = format!("api/models/{repo}/revision/{}", escape(revision, false));
        let mut url = self.url(&path)?;
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(false, &url, None)?;
            if let Some(next) = self.next_hop(&url, &response)? {
                url = next;
                continue;
            }
            if response.status().as_u16() != 200 {
                return Err(self.refuse(&url, repo, &what, &response));
            }
            let mut text = Vec::new();
            let reader = response.into_body().into_reader();
            reader
                .take(MAX_JSON + 1)
                .read_to_end(&mut text)
                .map_err(|error| Trouble::Retry { wait: None, reason: error.to_string() })?;
            return parse_revision(&text).map_err(|reason| StoreError::BadReply { what, reason }.into());
        }
        Err(too_many_redirects(what))
    }

    /// Looks up a file's hash and size.
    pub(super) fn head(&self, file: &HubFile) -> Result<FileMeta, Trouble> {
        let what = format!("{}/{}", file.repo, file.path);
        let bad = |reason: &str| StoreError::BadReply { what: what.clone(), reason: reason.to_owned() };
        let mut url = self.file_url(file)?;
        let (mut etag, mut size) = (None, None);
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(true, &url, None)?;
            let commit = header(&response, "x-repo-commit");
            if commit.is_some_and(|commit| is_commit(&file.revision) && commit != file.revision) {
                return Err(bad("another commit than the one asked for").into());
            }
            // Storage hosts have entity tags of their own, which say nothing about the content.
            let trusted = self.is_hub(&url) || commit.is_some();
            if trusted {
                etag = header(&response, "x-linked-etag").map(str::to_owned).or(etag);
                size = header(&response, "x-linked-size").and_then(|text| text.trim().parse().ok()).or(size);
            }
            let next = self.next_hop(&url, &response)?;
            let done = next.is_none();
            if let Some(next) = next {
                if etag.is_none() || size.is_none() {
                    url = next;
                    continue;
                }
            } else if response.status().as_u16() != 200 {
                return Err(self.refuse(&url, &file.repo, &what, &response));
            }
            if done {
                if trusted && etag.is_none() {
                    etag = header(&response, "etag").map(str::to_owned);
                }
                size =
                    size.or_else(|| header(&response, "content-length").and_then(|text| text.parse().ok()));
            }
            let etag = etag.as_deref().and_then(clean_etag).ok_or_else(|| bad("no usable entity tag"))?;
            let size = size.ok_or_else(|| bad("no size"))?;
            return Ok(FileMeta { etag, size });
        }
        Err(too_many_redirects(what))
    }

    /// Asks for a file's bytes from `from` on; the reply has status 200, 206 or 416.
    pub(super) fn get(&self, file: &HubFile, from: u64) -> Result<Response<Body>, Trouble> {
        let what = format!("{}/{}", file.repo, file.path);
        let mut url = self.file_url(file)?;
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(false, &url, (from > 0).then_some(from))?;
            match self.next_hop(&url, &response)? {
                Some(next) => url = next,
                None if matches!(response.status().as_u16(), 200 | 206 | 416) => return Ok(response),
                None => return Err(self.refuse(&url, &file.repo, &what, &response)),
            }
        }
        Err(too_many_redirects(what))
    }

    fn file_url(&self, file: &HubFile) -> Result<Uri, Trouble> {
        let (revision, path) = (escape(&file.revision, false), escape(&file.path, true));
        self.url(&format!("{}/resolve/{revision}/{path}", file.repo))
    }

    fn url(&self, path: &str) -> Result<Uri, Trouble> {
        let text = format!("{}/{path}", self.settings.endpoint);
        text.parse().map_err(|_| {
            let reason = format!("`{}` is not an address", self.settings.endpoint);
            StoreError::BadSetting { name: "HF_ENDPOINT", reason }.into()
        })
    }
}

fn parse_revision(text: &[u8]) -> Result<RevisionInfo, String> {
    if text.len() as u64 > MAX_JSON {
        return Err(format!("a reply longer than {MAX_JSON} bytes"));
    }
    let reply: RevisionReply = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !is_commit(&reply.sha) {
        return Err("no commit id".to_owned());
    }
    if reply.siblings.len() > MAX_FILES {
        return Err(format!("more than {MAX_FILES} files"));
    }
    let files = reply.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    Ok(RevisionInfo { commit: reply.sha, files })
}

fn too_many_redirects(what: String) -> Trouble {
    StoreError::BadReply { what, reason: format!("more than {MAX_REDIRECTS} redirects") }.into()
}

/// A header's text, where it is text.
pub(super) fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// The address without its query, which may hold a signature.
fn bare(url: &Uri) -> String {
    format!("{}://{}{}", url.scheme_str().unwrap_or("?"), url.host().unwrap_or("?"), url.path())
}

fn origin(url: &Uri) -> Option<Origin> {
    let scheme = url.scheme_str()?.to_ascii_lowercase();
    let port = url.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, url.host()?.to_ascii_lowercase(), port))
}

fn join(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.trim().split('#').next().unwrap_or("");
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let text = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let url: Uri = text.parse().ok()?;
    url.host().is_some().then_some(url)
}

/// Percent-encodes what may not stand in a path; `/` stays when `slashes` says so.
fn escape(text: &str, slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' if slashes => out.push('/'),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
