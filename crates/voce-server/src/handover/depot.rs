//! Where parcels wait for their clients: on another machine's shelf, or in a folder that all machines see.

use std::io::{Read as _, Write as _};
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::seal::{Id, Secret};

/// How long another machine may take to be reached, and to take or give a parcel.
const CONNECT: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
/// The header with the word that lets a machine take a parcel.
pub(super) const WORD: &str = "voce-handover-word";
/// Most machines that a name may stand for.
const MAX_ADDRESSES: usize = 1024;
/// How the files of a folder end.
const ENDING: &str = "parcel";

/// A place for parcels. Its calls may wait, so they are for threads that may.
pub(super) trait Depot: Send + Sync {
    /// Keeps a sealed parcel where other machines find it.
    fn put(&self, id: Id, sealed: &[u8]) -> Result<(), String>;

    /// Takes a parcel of at most `most` bytes; whoever asks next finds none.
    fn take(&self, id: Id, most: usize) -> Option<Vec<u8>>;
}

/// Other machines of the service.
pub(super) struct Peers {
    urls: Vec<String>,
    secret: Secret,
    agent: ureq::Agent,
}

impl Peers {
    pub(super) fn new(urls: &[String], secret: Secret) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("voce/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(TIMEOUT))
            .build()
            .new_agent();
        Self { urls: urls.to_vec(), secret, agent }
    }

    /// Every machine that the names stand for now, from one on that depends on the parcel: not all go to the first.
    fn machines(&self, id: Id) -> Vec<String> {
        let mut all: Vec<String> = self.urls.iter().flat_map(|url| addresses(url)).collect();
        if !all.is_empty() {
            let first = usize::from(u16::from_le_bytes([id.0[0], id.0[1]])) % all.len();
            all.rotate_left(first);
        }
        all
    }
}

/// The machines of an address: a name without encryption may stand for several.
fn addresses(url: &str) -> Vec<String> {
    let plain = url.trim_end_matches('/').to_owned();
    let Some(authority) = plain.strip_prefix("http://").filter(|rest| !rest.contains('/')) else {
        return vec![plain];
    };
    let with_port = if authority.rsplit(']').next().is_some_and(|end| end.contains(':')) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    match with_port.to_socket_addrs() {
        Ok(found) => found.take(MAX_ADDRESSES).map(|at| format!("http://{at}")).collect(),
        Err(_) => vec![plain],
    }
}

impl Depot for Peers {
    fn put(&self, id: Id, sealed: &[u8]) -> Result<(), String> {
        let mut last = "no peer is named".to_owned();
        for machine in self.machines(id) {
            match self.agent.put(format!("{machine}{}/{}", super::PATH, id.hex())).send(sealed) {
                Ok(response) if response.status() == 201 => return Ok(()),
                Ok(response) => last = format!("{machine} answered {}", response.status()),
                Err(error) => last = format!("{machine}: {error}"),
            }
        }
        Err(last)
    }

    fn take(&self, id: Id, most: usize) -> Option<Vec<u8>> {
        let word = self.secret.word(id);
        self.machines(id).iter().find_map(|machine| {
            let url = format!("{machine}{}/{}", super::PATH, id.hex());
            let response = self.agent.delete(url).header(WORD, &word).call().ok()?;
            if response.status() != 200 {
                return None;
            }
            let mut body = response.into_body();
            body.with_config().limit(most as u64).read_to_vec().ok()
        })
    }
}

/// A folder that all machines see.
pub(super) struct Folder {
    at: PathBuf,
    time: Duration,
    most: usize,
}

impl Folder {
    pub(super) fn new(at: &Path, time: Duration, most: usize) -> Self {
        Self { at: at.to_owned(), time, most }
    }

    /// Removes what is old, and counts the rest.
    fn tidy(&self) -> std::io::Result<usize> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(&self.at)? {
            let entry = entry?;
            if entry.path().extension().is_none_or(|ending| ending != ENDING) {
                continue;
            }
            let Ok(about) = entry.metadata() else { continue };
            let age = about.modified().ok().and_then(|t| SystemTime::now().duration_since(t).ok());
            // Clocks of file servers differ.
            if age.is_some_and(|age| age > 2 * self.time) {
                let _ = std::fs::remove_file(entry.path());
            } else {
                bytes += about.len() as usize;
            }
        }
        Ok(bytes)
    }

    fn write(&self, id: Id, sealed: &[u8]) -> std::io::Result<()> {
        let beside = self.at.join(format!("{}.{}.part", id.hex(), std::process::id()));
        let written = (|| {
            let mut file = std::fs::File::create(&beside)?;
            file.write_all(sealed)?;
            file.sync_all()?;
            std::fs::rename(&beside, self.file(id))
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written
    }

    fn file(&self, id: Id) -> PathBuf {
        self.at.join(format!("{}.{ENDING}", id.hex()))
    }
}

impl Depot for Folder {
    fn put(&self, id: Id, sealed: &[u8]) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.at.display());
        if self.tidy().map_err(failed)? + sealed.len() > self.most {
            return Err(format!("{} has {} bytes of streams already", self.at.display(), self.most));
        }
        self.write(id, sealed).map_err(failed)
    }

    fn take(&self, id: Id, most: usize) -> Option<Vec<u8>> {
        // Of several who rename a file, one finds it.
        let mine = self.at.join(format!("{}.{}.taken", id.hex(), Id::new().ok()?.hex()));
        std::fs::rename(self.file(id), &mine).ok()?;
        let mut bytes = Vec::new();
        let read = std::fs::File::open(&mine).and_then(|f| f.take(most as u64 + 1).read_to_end(&mut bytes));
        let _ = std::fs::remove_file(&mine);
        read.ok().filter(|n| *n <= most).map(|_| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_machines() {
        assert_eq!(addresses("http://127.0.0.1:8080/"), ["http://127.0.0.1:8080"]);
        assert_eq!(addresses("http://127.0.0.1"), ["http://127.0.0.1:80"]);
        assert_eq!(addresses("http://[::1]:8080"), ["http://[::1]:8080"]);
        assert_eq!(addresses("http://[::1]"), ["http://[::1]:80"]);
        assert_eq!(addresses("https://a.example"), ["https://a.example"]);
        assert_eq!(addresses("http://a.example/prefix"), ["http://a.example/prefix"]);
    }

    #[test]
    fn a_folder_gives_each_parcel_once_and_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path(), Duration::from_secs(60), 100);
        let (one, two) = (Id([1; 16]), Id([2; 16]));
        folder.put(one, &[7; 60]).unwrap();
        assert!(folder.put(two, &[7; 41]).is_err());
        folder.put(two, &[8; 40]).unwrap();
        assert_eq!(folder.take(one, 100), Some(vec![7; 60]));
        assert_eq!(folder.take(one, 100), None);
        assert_eq!(folder.take(two, 39), None, "larger than anybody made");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // What nobody fetched goes when the next one comes.
        let brief = Folder::new(dir.path(), Duration::ZERO, 100);
        brief.put(one, &[7; 90]).unwrap();
        let file = std::fs::File::options().write(true).open(brief.file(one)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap();
        brief.put(two, &[7; 90]).unwrap();
        assert_eq!(brief.take(one, 100), None);
        assert!(Folder::new(Path::new("/nowhere/at/all"), Duration::ZERO, 1).put(one, &[]).is_err());
    }
}
