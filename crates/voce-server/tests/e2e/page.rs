//! The page's files.

use hyper::StatusCode;

use crate::server::Setup;

#[tokio::test]
async fn the_page_and_its_parts() {
    let server = Setup { speak: false, ..Default::default() }.start().await;
    for (path, kind, has) in [
        ("/", "text/html", "<title>Voce</title>"),
        ("/page.js", "text/javascript", "audioWorklet"),
        ("/page.css", "text/css", "prefers-color-scheme"),
        ("/mic.js", "text/javascript", "registerProcessor"),
        ("/favicon.svg", "image/svg+xml", "<svg"),
    ] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
        assert!(reply.header("content-type").starts_with(kind) && reply.text().contains(has), "{path}");
        assert!(reply.header("content-security-policy").contains("default-src 'self'"));
    }
    // Nothing comes from elsewhere.
    let page = server.get("/").await;
    assert!(!page.text().contains("http://") && !page.text().contains("https://"));
}

#[tokio::test]
async fn every_id_that_the_script_uses_is_on_the_page() {
    let server = Setup { speak: false, ..Default::default() }.start().await;
    let (page, script) = (server.get("/").await, server.get("/page.js").await);
    let mut count = 0;
    for part in script.text().split("$(\"").skip(1) {
        let id = part.split('"').next().unwrap();
        assert!(page.text().contains(&format!("id=\"{id}\"")), "{id}");
        count += 1;
    }
    assert!(count > 20);
}
