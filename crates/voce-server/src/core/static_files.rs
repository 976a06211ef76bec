//! Files of a folder for those who ask for what no route has: a configuration's own pages.

use std::path::{Component, Path, PathBuf};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse as _, Response};

use super::aside;
use super::error::ServerError;
use super::state::AppState;
use super::watch;

/// Largest file that is served.
const MAX_FILE: u64 = 64 << 20;
/// The page of a folder.
const INDEX: &str = "index.html";

/// The folder's page at `/`, where it has one.
pub(crate) fn has_index(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| folder.join(INDEX).is_file())
}

/// A file, or that there is nothing.
pub(crate) async fn serve(State(state): State<AppState>, request: Request) -> Result<Response, ServerError> {
    let asked = (request.method() == Method::GET).then(|| request.uri().path().to_owned());
    let (Some(root), Some(asked)) = (state.options.static_dir.clone(), asked) else {
        return Err(watch::not_found(request).await);
    };
    let read = aside::wait(move || read(&root, &asked));
    match read.await {
        Some(Some((path, bytes))) => {
            let kind = HeaderValue::from_static(media_type(&path));
            Ok(([(CONTENT_TYPE, kind)], Body::from(bytes)).into_response())
        }
        _ => Err(watch::not_found(request).await),
    }
}

/// The file that a path means, which lies below the root, whatever links and dots say.
fn read(root: &Path, asked: &str) -> Option<(PathBuf, Vec<u8>)> {
    let root = root.canonicalize().ok()?;
    let mut path = root.join(relative(asked)?);
    if path.is_dir() {
        path.push(INDEX);
    }
    let path = path.canonicalize().ok().filter(|path| path.starts_with(&root))?;
    let about = std::fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= MAX_FILE)?;
    let bytes = std::fs::read(&path).ok().filter(|bytes| bytes.len() as u64 <= about.len().max(MAX_FILE))?;
    Some((path, bytes))
}

/// A path of names alone.
fn relative(asked: &str) -> Option<PathBuf> {
    let decoded = super::query::decode_path(asked);
    let path = Path::new(decoded.trim_start_matches('/'));
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(name) if name.to_str().is_some_and(|n| !n.starts_with('.')));
    (!decoded.contains(['\0', '\\']) && path.components().all(is_name)).then(|| path.to_owned())
}

fn media_type(path: &Path) -> &'static str {
    match path.extension().and_then(|end| end.to_str()).unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "ico" => "image/x-icon",
        "wasm" => "application/wasm",
        "wav" => "audio/wav",
        "mp3" => "audio/mpeg",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_folder_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("static");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        for (name, text) in
            [("index.html", "page"), ("sub/index.html", "sub"), ("a b.js", "js"), (".key", "k")]
        {
            std::fs::write(root.join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(dir.path().join("secret"), root.join("link")).unwrap();
        let of = |asked: &str| read(&root, asked).map(|(_, bytes)| String::from_utf8(bytes).unwrap());
        assert_eq!(of("/").as_deref(), Some("page"));
        assert_eq!(of("/sub").as_deref(), Some("sub"));
        assert_eq!(of("/a%20b.js").as_deref(), Some("js"));
        for bad in [
            "/../secret",
            "/%2e%2e/secret",
            "/link",
            "/.key",
            "/none",
            "//etc/passwd",
            "/sub/../index.html",
            "/a\0",
            "/..%5csecret",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
