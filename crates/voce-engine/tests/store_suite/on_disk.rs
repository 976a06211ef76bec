//! Without a network: the catalogue, finding models, listing them and removing them.

use std::fs;
use std::path::Path;

use tempfile::tempdir;
use voce_engine::store::catalogue::{self, Extra, Files, Source};
use voce_engine::store::{Entry, Family, HubFile, Origin, Reference, RepoId, Store, Task};

use crate::hub::{REPO, etag_of, settings};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

/// Puts a file into the cache as `huggingface_hub` would.
fn put(root: &Path, file: &HubFile, content: &[u8]) {
    let repo = root.join("hub").join(format!("models--{}--{}", file.repo.owner(), file.repo.name()));
    let blob = repo.join("blobs").join(etag_of(content));
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::write(&blob, content).unwrap();
    let pointer = repo.join("snapshots").join(&file.revision).join(&file.path);
    fs::create_dir_all(pointer.parent().unwrap()).unwrap();
    let up = "../".repeat(file.path.split('/').count() + 1);
    std::os::unix::fs::symlink(format!("{up}blobs/{}", etag_of(content)), pointer).unwrap();
}

fn file(path: &str, revision: &str) -> HubFile {
    let repo = RepoId::new("acme", "talker").unwrap();
    HubFile { repo, revision: revision.to_owned(), path: path.to_owned() }
}

fn name_ref(root: &Path, name: &str, commit: &str) {
    let refs = root.join("hub/models--acme--talker/refs");
    fs::create_dir_all(&refs).unwrap();
    fs::write(refs.join(name), commit).unwrap();
}

fn store(root: &Path) -> Store {
    Store::new(settings(root, "http://127.0.0.1:9"))
}

fn remove(store: &Store, text: &str) -> Result<(usize, u64), &'static str> {
    let removed = store.remove(&Reference::parse(text).unwrap());
    removed.map(|removed| (removed.files, removed.bytes)).map_err(|error| error.code())
}

fn ids(store: &Store) -> Vec<String> {
    store.list().into_iter().map(|model| model.id).collect()
}

fn files_of(entry: &Entry) -> &Files {
    entry.files().unwrap()
}

fn voice(entry: &Entry, name: &str) -> HubFile {
    entry.voice_files().find(|(of, _)| *of == name).unwrap().1
}

#[test]
fn catalogue_is_sound() {
    let mut names = std::collections::BTreeSet::new();
    for entry in catalogue::entries().filter(|entry| entry.task == Task::Speech) {
        if let Source::Repo(repo) = &entry.source {
            assert_eq!(repo.name.to_lowercase().replace("-12hz", ""), entry.alias);
            let own = entry.voices.is_some_and(|voices| voices.names.contains(&voices.default));
            if entry.family == Family::Kyutai {
                assert_eq!(own, entry.alias == "tts-1.6b-en_fr");
                let files: Vec<String> = entry.voice_files().map(|(_, file)| file.path).collect();
                assert!(
                    files.iter().all(|path| path.ends_with(".wav.1e68beda@240.safetensors")),
                    "{files:?}"
                );
                continue;
            }
            assert_eq!(own, entry.alias.ends_with("customvoice"));
            assert_eq!((entry.languages.len(), entry.family), (10, Family::Qwen));
            continue;
        }
        let Extra::Pocket(pocket) = entry.extra else { panic!("{}", entry.alias) };
        assert_eq!(entry.alias, format!("pocket-{}", pocket.config.replace('_', "-")));
        for name in std::iter::once(&entry.alias).chain(entry.also) {
            assert!(names.insert(*name), "{name} twice");
        }
        let voices = entry.voices.unwrap();
        assert!(voices.names.contains(&voices.default) && voices.names.len() == 27);
        let files = files_of(entry);
        for file in
            [files.weights(true), files.weights(false), files.tokenizer.hub_file(), voice(entry, "alba")]
        {
            assert!(voce_engine::store::is_commit(&file.revision), "{}", file.url());
            let Ok(Reference::Hub(place)) = Reference::parse(&file.url()) else { panic!("{}", file.url()) };
            assert_eq!(
                (place.repo, place.path.unwrap(), place.revision),
                (file.repo, file.path, file.revision)
            );
        }
    }
    assert_eq!(catalogue::entries().filter(|entry| entry.task == Task::Speech).count(), 34);
    assert_eq!(catalogue::entries().filter(|entry| entry.task == Task::Hearing).count(), 18);
    assert_eq!(catalogue::entries().filter(|entry| entry.task == Task::Dialogue).count(), 2);
    assert_eq!(catalogue::near("pocket-frensh")[0], "pocket-french");
}

#[test]
fn parameters_match_the_published_models() {
    let counts = |name: &str| {
        let entry = catalogue::find(name).unwrap();
        let Extra::Pocket(pocket) = entry.extra else { panic!("{name}") };
        let shape = pocket.shape;
        assert_eq!(entry.parameters, shape.parameters());
        (
            shape.flow_parameters(),
            shape.encoder_parameters() + shape.decoder_parameters(),
            shape.encoder_parameters(),
        )
    };
    assert_eq!(counts("pocket"), (89_447_809, 20_054_337, 9_749_024));
    assert_eq!(counts("pocket-german-24l"), (316_013_953, 20_054_337, 9_749_024));
    assert_eq!(counts("pocket-english-2026-01"), (89_938_305, 27_918_657, 17_613_344));
    assert_eq!(counts("pocket-drifting"), (88_658_049, 20_054_337, 9_749_024));
    assert_eq!(counts("pocket-18m"), (15_556_801, 12_366_257, 9_749_024));
    assert_eq!(counts("pocket-7m"), (4_245_409, 12_366_257, 9_749_024));
    assert_eq!(counts("pocket-2m"), (881_201, 10_790_733, 9_749_024));
}

#[test]
fn catalogue_model_found_by_alias() {
    let root = tempdir().unwrap();
    let (store, entry) = (store(root.path()), catalogue::find("pocket").unwrap());
    let error = store.find("pocket").unwrap_err();
    assert_eq!(error.code(), "not_pulled");
    assert!(error.to_string().contains("voce pull pocket-english"), "{error}");
    let files = files_of(entry);
    put(root.path(), &files.weights(false), b"plain weights");
    assert!(store.find("pocket").unwrap_err().to_string().contains("tokeniser"));
    assert!(!store.list()[0].is_complete());
    put(root.path(), &files.tokenizer.hub_file(), b"tokens");
    put(root.path(), &voice(entry, "alba"), b"voice");
    let plain = store.find("pocket").unwrap();
    assert_eq!(fs::read(&plain.weights[0]).unwrap(), b"plain weights");
    assert_eq!(fs::read(plain.tokenizer.unwrap()).unwrap(), b"tokens");
    assert_eq!(plain.voices.keys().collect::<Vec<_>>(), ["alba"]);
    assert_eq!((plain.family, plain.cloning, plain.entry), (Some(Family::Pocket), false, Some(entry)));
    assert!(
        store.find("pocket:cloning").unwrap_err().to_string().contains("voce pull pocket-english:cloning")
    );

    put(root.path(), &files.weights(true), b"cloning weights");
    let cloning = store.find("pocket").unwrap();
    assert_eq!(
        (fs::read(&cloning.weights[0]).unwrap(), cloning.cloning),
        (b"cloning weights".to_vec(), true)
    );
    assert_eq!(ids(&store), ["pocket-english:cloning"]);
    assert!(store.list()[0].is_complete());
    assert_eq!(store.list()[0].bytes, (13 + 15 + 6 + 5) as u64);
}

/// A file of the repository that a catalogue name stands for.
fn repo_file(entry: &Entry, path: &str, revision: &str) -> HubFile {
    let catalogue::Source::Repo(repo) = entry.source else { panic!("{}", entry.alias) };
    HubFile { repo: repo.place().repo, revision: revision.to_owned(), path: path.to_owned() }
}

#[test]
fn a_catalogue_model_that_is_a_repository_goes_by_its_alias() {
    let root = tempdir().unwrap();
    let (store, entry) = (store(root.path()), catalogue::find("nemotron").unwrap());
    let error = store.find("nemotron").unwrap_err();
    assert_eq!(error.code(), "not_pulled");
    assert!(error.to_string().contains(&format!("voce pull {}", entry.alias)), "{error}");
    put(root.path(), &repo_file(entry, "model.safetensors", OLD), b"old");
    assert_eq!(store.find("nemotron").unwrap_err().code(), "not_pulled", "no branch is known yet");
    put(root.path(), &repo_file(entry, "model.safetensors", NEW), b"new!");
    put(root.path(), &repo_file(entry, "tokenizer.json", NEW), b"{}");
    let repo = root.path().join(format!("hub/models--nvidia--{}", entry.alias));
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), NEW).unwrap();

    let found = store.find("nemotron").unwrap();
    assert_eq!((found.id.as_str(), found.entry), (entry.alias, Some(entry)));
    assert_eq!((found.family, found.task), (Some(Family::FastConformer), Some(Task::Hearing)));
    assert_eq!(fs::read(&found.weights[0]).unwrap(), b"new!");
    let by_repo = store.find(&format!("nvidia/{}", entry.alias)).unwrap();
    assert_eq!(by_repo.weights, found.weights);

    assert_eq!(ids(&store), [entry.alias.to_owned(), format!("nvidia/{}@{OLD}", entry.alias)]);
    assert!(store.list()[0].is_complete() && store.list()[0].bytes == 6);
    fs::write(repo.join("blobs/abc.incomplete"), "part").unwrap();
    assert_eq!(ids(&store).len(), 2, "a partial download is told with its model");
    assert_eq!(store.list()[0].missing, ["abc.incomplete"]);
    assert_eq!(remove(&store, "nemotron"), Ok((3, 13)));
    assert!(!repo.exists());
    assert_eq!(remove(&store, "nemotron"), Err("not_pulled"));
}

#[test]
fn removing_a_catalogue_model_spares_what_others_need() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let (one, two) =
        (catalogue::find("pocket-english-2026-10").unwrap(), catalogue::find("pocket-drifting").unwrap());
    assert_eq!(files_of(one).tokenizer, files_of(two).tokenizer);
    put(root.path(), &files_of(one).tokenizer.hub_file(), b"shared");
    put(root.path(), &files_of(one).weights(false), b"one");
    put(root.path(), &voice(one, "alba"), b"voice of one");
    put(root.path(), &files_of(two).weights(false), b"two!");
    assert_eq!(ids(&store), ["pocket-english-2026-10", "pocket-english-drifting-26-09"]);
    assert_eq!(remove(&store, one.alias), Ok((2, 15)));
    assert_eq!(remove(&store, one.alias), Err("not_pulled"));
    assert!(store.find(two.alias).is_ok());
    assert_eq!(remove(&store, two.alias), Ok((2, 10)));
    assert_eq!(fs::read_dir(root.path().join("hub")).unwrap().count(), 0);
}

#[test]
fn hub_model_by_branch_commit_and_part() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    put(root.path(), &file("model.safetensors", OLD), b"old");
    put(root.path(), &file("en/model.safetensors", NEW), b"new");
    put(root.path(), &file("en/tokenizer.json", NEW), b"{}");
    put(root.path(), &file("config.json", NEW), b"{\"model_type\": \"qwen3_tts\"}");
    assert_eq!(store.find(REPO).unwrap_err().code(), "not_pulled", "no branch is known yet");
    name_ref(root.path(), "main", NEW);
    let found = store.find(REPO).unwrap();
    assert_eq!(found.family, Some(Family::Qwen));
    assert!(found.tokenizer.unwrap().ends_with("en/tokenizer.json"));
    assert_eq!(fs::read(&store.find(&format!("{REPO}@{OLD}")).unwrap().weights[0]).unwrap(), b"old");
    assert_eq!(fs::read(&store.find(&format!("{REPO}@1111111")).unwrap().weights[0]).unwrap(), b"old");
    assert_eq!(fs::read(&store.find("acme/talker/en").unwrap().weights[0]).unwrap(), b"new");
    assert_eq!(store.find("hf://acme/talker/en/model.safetensors").unwrap().weights.len(), 1);
    assert_eq!(store.find("acme/talker/fr").unwrap_err().code(), "not_pulled");

    assert_eq!(ids(&store), [format!("{REPO}@{OLD}"), REPO.to_owned()]);
    let Origin::Hub { commit, refs, .. } = &store.list()[1].origin else { panic!() };
    assert_eq!((commit.as_str(), refs.as_slice()), (NEW, &["main".to_owned()][..]));
}

#[test]
fn incomplete_snapshots_say_so() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    put(root.path(), &file("a-00001-of-00002.safetensors", OLD), b"1");
    let index =
        br#"{"weight_map": {"x": "a-00001-of-00002.safetensors", "y": "a-00002-of-00002.safetensors"}}"#;
    put(root.path(), &file("a.safetensors.index.json", OLD), index);
    assert_eq!(store.list()[0].missing, ["a-00002-of-00002.safetensors"]);
    put(root.path(), &file("a-00002-of-00002.safetensors", OLD), b"2");
    assert!(store.list()[0].is_complete());
    let blobs = root.path().join("hub/models--acme--talker/blobs");
    fs::write(blobs.join("abc.incomplete"), "part").unwrap();
    assert_eq!(store.list()[0].missing, ["abc.incomplete"]);
    fs::remove_file(blobs.join("abc.incomplete")).unwrap();
    fs::remove_file(blobs.join(etag_of(b"2"))).unwrap();
    assert!(!store.list()[0].is_complete(), "a link that leads nowhere");
}

#[test]
fn unfinished_downloads_are_listed_and_swept() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let entry = catalogue::find("pocket").unwrap();
    put(root.path(), &files_of(entry).weights(false), b"weights");
    put(root.path(), &files_of(entry).tokenizer.hub_file(), b"tokens");
    let name = "models--kyutai--pocket-tts-without-voice-cloning";
    let blobs = root.path().join("hub").join(name).join("blobs");
    fs::write(blobs.join("abc.incomplete"), "part").unwrap();
    fs::write(blobs.join("def.incomplete"), "other part").unwrap();
    let locks = root.path().join("hub/.locks").join(name);
    fs::create_dir_all(&locks).unwrap();
    let running = fs::File::create(locks.join("def.lock")).unwrap();
    running.lock().unwrap();
    assert_eq!(ids(&store), ["pocket-english", "kyutai/pocket-tts-without-voice-cloning"]);
    assert_eq!((store.list()[1].bytes, store.list()[1].is_complete()), (14, false));
    let swept = store.remove_partials().unwrap();
    assert_eq!((swept.files, swept.bytes), (1, 4));
    assert!(blobs.join("def.incomplete").exists() && store.find("pocket").is_ok());
    drop(running);
    assert_eq!(store.remove_partials().unwrap().files, 1);
    assert_eq!(ids(&store), ["pocket-english"]);
}

#[test]
fn removing_a_revision_keeps_shared_content() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    for (path, revision, content) in [
        ("same.safetensors", OLD, &b"shared"[..]),
        ("x/old.safetensors", OLD, b"only old"),
        ("same.safetensors", NEW, b"shared"),
        ("y/new.safetensors", NEW, b"only new!"),
    ] {
        put(root.path(), &file(path, revision), content);
    }
    name_ref(root.path(), "main", NEW);
    name_ref(root.path(), "v1", OLD);
    assert_eq!(remove(&store, "acme/talker@v1"), Ok((2, 8)));
    let repo = root.path().join("hub/models--acme--talker");
    assert!(!repo.join("snapshots").join(OLD).exists() && !repo.join("refs/v1").exists());
    assert!(repo.join("blobs").join(etag_of(b"shared")).exists());
    assert!(!repo.join("blobs").join(etag_of(b"only old")).exists());
    assert_eq!(remove(&store, "acme/talker/y@main"), Ok((1, 9)));
    assert_eq!(store.find(REPO).unwrap().weights.len(), 1);
    assert_eq!(remove(&store, REPO), Ok((1, 6)));
    assert!(!repo.exists());
    assert_eq!(remove(&store, REPO), Err("not_pulled"));
}

#[test]
fn nothing_outside_of_the_store_is_removed() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let precious = root.path().join("precious");
    fs::create_dir_all(&precious).unwrap();
    fs::write(precious.join("model.safetensors"), "mine").unwrap();
    assert_eq!(remove(&store, precious.to_str().unwrap()), Err("outside_store"));
    fs::create_dir_all(root.path().join("voce/models")).unwrap();
    assert_eq!(remove(&store, precious.to_str().unwrap()), Err("outside_store"));
    std::os::unix::fs::symlink(&precious, root.path().join("voce/models/link")).unwrap();
    assert_eq!(remove(&store, "link"), Err("outside_store"));
    fs::create_dir_all(root.path().join("hub")).unwrap();
    std::os::unix::fs::symlink(&precious, root.path().join("hub/models--acme--talker")).unwrap();
    assert_eq!(remove(&store, REPO), Err("outside_store"));
    assert_eq!(remove(&store, "acme/talker@v1"), Err("outside_store"));
    assert!(precious.join("model.safetensors").exists());
}

#[test]
fn own_models() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let mine = root.path().join("voce/models/mine");
    fs::create_dir_all(mine.join("embeddings")).unwrap();
    let header = br#"{"flow_lm.bos_emb":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header);
    fs::write(mine.join("model.safetensors"), &weights).unwrap();
    fs::write(mine.join("tokenizer.model"), "t").unwrap();
    fs::write(mine.join("embeddings/anna.safetensors"), "v").unwrap();
    let by_name = store.find("mine").unwrap();
    let by_path = store.find(mine.to_str().unwrap()).unwrap();
    assert_eq!((&by_name.weights, by_name.family), (&by_path.weights, Some(Family::Pocket)));
    assert_eq!(by_name.weights, [mine.join("model.safetensors")]);
    assert_eq!(by_name.voices["anna"], mine.join("embeddings/anna.safetensors"));
    assert_eq!(ids(&store), ["mine"]);
    assert_eq!(remove(&store, "mine"), Ok((3, weights.len() as u64 + 2)));
    assert_eq!(store.find("mine").unwrap_err().code(), "unknown_model");
    assert_eq!(remove(&store, "mine"), Err("unknown_model"));
    let config = root.path().join("own.yaml");
    fs::write(&config, "flow_lm: {}").unwrap();
    let by_config = store.find(config.to_str().unwrap()).unwrap();
    assert_eq!((by_config.config, by_config.family), (Some(config), Some(Family::Pocket)));
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(store.find(empty.to_str().unwrap()).unwrap_err().code(), "bad_reference");
}
