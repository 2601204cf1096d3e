//! `setrank train`, as a person calls it: presets, files, resumption, interruption, and every way to get it wrong.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Folder, TINY, contains, letor, with_data};

#[test]
fn a_run_leaves_a_model_logs_and_its_configuration() {
    let folder = with_data();
    let err = folder.train("model", "--lr 0.01");
    contains(&err, &["epoch 3 step 18", "ndcg@10", "all epochs are done"]);
    let config: serde_json::Value = serde_json::from_slice(&folder.bytes("model/config.json")).unwrap();
    assert_eq!((&config["hidden_size"], &config["num_features"]), (&8.into(), &5.into()));
    assert_eq!(config["normalize"]["kind"], "log1p-zscore");
    assert_eq!(config["normalize"]["indicators"], serde_json::json!([false, true, true, true, true]));
    assert!(config["training"]["valid"]["ndcg@10"].as_f64().unwrap() > 0.5);
    contains(
        &folder.text("model/train.toml"),
        &["lr = 0.01", "hidden = 8", "preset = \"default\"", "epochs = 3"],
    );
    assert_eq!(folder.text("model/log.jsonl").lines().count(), 18 + 3);
    contains(&folder.text("model/curve.svg"), &["<svg", "Validation ndcg@10"]);
    let described = folder.ok("info model");
    contains(&described, &["parameters: ", "hidden size: 8", "encoder: imsab", "layer norm eps: 1e-5"]);
}

#[test]
fn training_learns() {
    let folder = with_data();
    folder.train("model", "--lr 0.01 --epochs 15");
    folder.file("test.txt", letor(60, 3));
    let of = |arguments: &str| -> f64 {
        let out = folder.ok(&format!("eval {arguments} --data test.txt --metrics ndcg@10 --json"));
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["metrics"]["ndcg@10"]["mean"]
            .as_f64()
            .unwrap()
    };
    let documents = folder.text("test.txt").lines().count();
    folder.file("constant.txt", "1\n".repeat(documents));
    let (model, file_order) = (of("--model model"), of("--scores constant.txt"));
    assert!(model > file_order + 0.05, "{model} is not better than {file_order}");
}

#[test]
fn stopping_after_every_step_gives_the_same_bits() {
    stops_after_every_step(
        "--valid-every 4 --patience 0 --dropout 0.2 --schedule cosine --warmup-steps 3 --accumulate 2",
    );
}

#[test]
fn sets_of_like_sizes_are_resumed_to_the_same_bits() {
    let err = stops_after_every_step("--layout bucketed --patience 0 --batch-docs 40 --max-set-size 1000");
    contains(&err, &["batches of sets of like sizes", "rows a document"]);
}

/// What a run tells on stderr, and a check that stopping it after every step gives the same bits.
fn stops_after_every_step(more: &str) -> String {
    let folder = with_data();
    let told = folder.train("whole", more);
    folder.train("pieces", &format!("{more} --max-seconds 1e-9"));
    let mut resumed = 0;
    while !folder.ok_with_stderr("train -o pieces --resume").1.contains("all epochs are done") {
        resumed += 1;
        assert!(resumed < 20, "a resumed run gets on");
    }
    assert!(resumed > 3);
    for file in ["model.safetensors", "state.safetensors", "config.json"] {
        assert!(folder.bytes(&format!("whole/{file}")) == folder.bytes(&format!("pieces/{file}")), "{file}");
    }
    let steps = |log: &str| -> Vec<String> {
        folder
            .text(log)
            .lines()
            .map(|line| line.split(",\"documents_per_s\"").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(steps("whole/log.jsonl"), steps("pieces/log.jsonl"));
    told
}

#[test]
fn threads_make_no_difference() {
    let folder = with_data();
    for encoder in ["msab", "imsab"] {
        for threads in [1, 3] {
            folder.train(&format!("{encoder}{threads}"), &format!("--encoder {encoder} --threads {threads}"));
        }
        for file in ["model.safetensors", "state.safetensors"] {
            let [one, three] = [1, 3].map(|threads| folder.bytes(&format!("{encoder}{threads}/{file}")));
            assert!(one == three, "{encoder} {file}");
        }
    }
}

#[test]
fn seeds_make_a_difference_and_repeat() {
    let folder = with_data();
    for (output, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        folder.train(output, &format!("--seed {seed}"));
    }
    let model = |name: &str| folder.bytes(&format!("{name}/model.safetensors"));
    assert!(model("a") == model("b") && model("a") != model("c"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_the_step_and_saves() {
    let folder = with_data();
    let flags = format!(
        "train --train train.txt --valid valid.txt -o model {} --epochs 0 --patience 0",
        TINY.join(" ")
    );
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_setrank"))
        .current_dir(folder.path())
        .args(flags.split_whitespace())
        .args(["--max-steps", "100000000"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = folder.path().join("model/log.jsonl");
    let started = Instant::now();
    while std::fs::read_to_string(&log).map_or(0, |text| text.lines().count()) < 5 {
        assert!(started.elapsed() < Duration::from_secs(60), "no step was logged");
        std::thread::sleep(Duration::from_millis(20));
    }
    crate::common::interrupt(&child);
    assert!(child.wait().unwrap().success());
    let (_, err) = folder.ok_with_stderr("train -o model --resume --max-seconds 1e-9");
    contains(&err, &["the time is up"]);
    folder.ok("rank --model model --data valid.txt");
}

#[test]
fn toml_holds_every_flag_and_flags_win() {
    let folder = with_data();
    folder.file(
        "run.toml",
        "train = [\"train.txt\"]\nvalid = [\"valid.txt\"]\nhidden = 8\nheads = 2\nblocks = 1\nffn = 8\n\
         inducing = 2\nepochs = 1\nlr = 0.5\nencoder = \"msab\"\nselect = \"loss\"\n",
    );
    folder.ok("train --config run.toml --lr 0.25 -o model");
    contains(&folder.text("model/train.toml"), &["lr = 0.25", "encoder = \"msab\"", "select = \"loss\""]);
    // The effective configuration is a configuration.
    folder.ok("train --config model/train.toml -o again");
    assert!(folder.bytes("model/model.safetensors") == folder.bytes("again/model.safetensors"));
}

#[test]
fn presets_and_variants_run() {
    let folder = with_data();
    folder.train("paper", "--preset paper");
    folder
        .train("authors", "--preset authors --init-feature 1 --rbf-centers 5 --max-steps 12 --valid-every 5");
    folder.train("msab", "--encoder msab --loss attention_rank --normalize zscore --indicators false");
    folder.train("alone", "--preset authors --encoder msab --rbf-centers 5 --max-steps 3");
    contains(
        &folder.text("authors/config.json"),
        &["\"every_block\"", "\"rbf\"", "\"top_k\": 40", "\"minmax\""],
    );
    contains(&folder.text("paper/config.json"), &["\"ordinal\": null", "\"top_k\": null"]);
}

#[test]
fn a_model_can_be_trained_on() {
    let folder = with_data();
    folder.train("first", "--lr 0.01");
    folder.ok("train --train train.txt --valid valid.txt --from first --epochs 1 --lr 1e-4 -o second");
    assert_ne!(folder.bytes("first/model.safetensors"), folder.bytes("second/model.safetensors"));
    // A step of no length leaves the model that it started from.
    folder.ok("train --train train.txt --from first --max-steps 1 --lr 1e-30 -o same");
    let [first, same] =
        ["first", "same"].map(|model| folder.ok(&format!("rank --model {model} --data valid.txt")));
    assert_eq!(first, same);
    contains(&folder.text("second/train.toml"), &["hidden = 8", "from = \"first\""]);
    let message = folder.fails("train --train train.txt --from first --hidden 16 -o third");
    contains(&message, &["--from", "`hidden` 8, not 16"]);
}

#[test]
fn initial_rankings_come_from_files_features_or_the_store() {
    let folder = with_data();
    let documents = folder.text("train.txt").lines().count();
    let scores = |n: usize| -> String { (0..n).map(|i| format!("{}\n", (i * 7919) % 101)).collect() };
    folder.file("train.init", scores(documents));
    folder.file("valid.init", scores(folder.text("valid.txt").lines().count()));
    folder.train("files", "--init train.init --valid-init valid.init --init-feature 2:asc");
    contains(&folder.text("files/config.json"), &["\"rankings\": 2", "\"n_max\": 500"]);
    folder.ok("import train.txt --init train.init -o train.sets");
    folder.ok("import valid.txt --init valid.init -o valid.sets");
    let tiny = TINY.join(" ");
    folder.ok(&format!("train --train train.sets --valid valid.sets -o store {tiny} --epochs 1"));
    contains(&folder.text("store/config.json"), &["\"rankings\": 1"]);
    folder.ok("rank --model store --data valid.sets");
    let message = folder.fails("rank --model store --data valid.txt");
    contains(&message, &["takes 1 initial ranking", "--init"]);
    let message = folder.fails("rank --model store --data valid.txt --init train.init");
    contains(&message, &["train.init", "scores", "documents"]);
    let message =
        folder.fails(&format!("train --train train.txt --valid valid.txt -o x {tiny} --init train.init"));
    contains(&message, &["1 --init and 0 --valid-init"]);
}

#[test]
fn what_cannot_work_is_refused() {
    let folder = with_data();
    folder.file("irrelevant.txt", "0 qid:1 1:1\n0 qid:1 1:2\n");
    folder.file("empty.txt", "# nothing\n");
    folder.file("bad.toml", "learning_rate = 1\n");
    folder.file("broken.toml", "lr = \n");
    folder.file("file", "");
    folder.file("text.toml", "epochs = \"many\"\n");
    folder.file("bare.txt", "1 qid:1\n0 qid:1\n");
    let train = "train --train train.txt --valid valid.txt -o out";
    for (arguments, parts) in [
        ("train --valid valid.txt -o out", &["--train"][..]),
        ("train --train missing.txt -o out", &["missing.txt", "No such file"]),
        ("train --train empty.txt -o out", &["empty.txt", "no document"]),
        ("train --train irrelevant.txt -o out", &["no relevant document", "--label-offset"]),
        (&format!("{train} --heads 3"), &["hidden_size 64", "num_heads 3"]),
        (&format!("{train} --lr 0"), &["lr is 0"]),
        (&format!("{train} --dropout 1"), &["dropout is 1"]),
        (&format!("{train} --hidden 2000000"), &["hidden_size is 2000000"]),
        (&format!("{train} --ema 1"), &["ema is 1"]),
        (&format!("{train} --feature-dropout 1"), &["feature_dropout is 1"]),
        (&format!("{train} --input rbf --normalize minmax --within-set rank"), &["--within-set none"]),
        (&format!("{train} --input rbf"), &["rbf", "minmax"]),
        (&format!("{train} --init-feature 1 --n-max 2"), &["initial ranking 1", "n_max", "is 2"]),
        (&format!("{train} --init-feature 99"), &["feature 99"]),
        (&format!("{train} --max-set-size 2"), &["--max-set-size 2: query", "documents", "--top-k 2"]),
        (&format!("{train} --batch-docs 2 --layout bucketed"), &["--batch-docs 2: query", "alone has"]),
        (&format!("{train} --top-k 5"), &["--top-k needs an initial ranking"]),
        (&format!("{train} --ordinal every_block"), &["--ordinal needs an initial ranking"]),
        (&format!("{train} --config bad.toml"), &["bad.toml", "learning_rate"]),
        (&format!("{train} --config text.toml"), &["text.toml", "`epochs`", "expected u64"]),
        (&format!("{train} --threads 100000"), &["--threads 100000", "256"]),
        (&format!("{train} --hidden 1000000 --heads 4"), &["parameters"]),
        ("train --train train.txt -o out --select map", &["--select", "--valid"]),
        (&format!("{train} --config broken.toml"), &["broken.toml", "TOML"]),
        (&format!("{train} --config missing.toml"), &["missing.toml"]),
        (&format!("{train} --device cuda"), &["--device cuda"]),
        (&format!("{train} --from nowhere"), &["nowhere"]),
        (&format!("{train} --resume"), &["error: nothing to resume"]),
        ("train --train train.txt -o file/below", &["file/below"]),
        ("train --train train.txt -o file", &["file is a file"]),
    ] {
        contains(&folder.fails(arguments), parts);
    }
    let bare = folder.run("train --train bare.txt -o out");
    assert_eq!(bare.status.code(), Some(1));
    contains(&String::from_utf8_lossy(&bare.stderr), &["error: the training data has no feature"]);
    assert_eq!(folder.run(&format!("{train} --lr fast")).status.code(), Some(2));
    assert_eq!(folder.run(&format!("{train} --select accuracy")).status.code(), Some(2));
}

#[test]
fn a_model_is_not_replaced_unasked_and_only_resumed_as_it_was() {
    let folder = with_data();
    folder.train("model", "");
    let again = format!("train --train train.txt --valid valid.txt -o model {}", TINY.join(" "));
    contains(&folder.fails(&again), &["holds a model already", "--resume", "--overwrite"]);
    contains(&folder.fails("train -o model --resume --lr 0.1"), &["`lr` was", "cannot become 0.1"]);
    folder.file("other.txt", letor(24, 9));
    contains(&folder.fails("train -o model --resume --train other.txt --epochs 5"), &["not that of the run"]);
    folder.ok("train -o model --resume --epochs 4");
    folder.ok(&format!("{again} --overwrite --epochs 1"));
}

#[test]
fn resuming_takes_equal_values_and_refuses_others() {
    let folder = with_data();
    folder.file("run.toml", "clip = 5\nbeta1 = 0.9\ninit_feature = [\"1\"]\n");
    folder.train("model", "--config run.toml");
    folder.ok("train -o model --resume --config run.toml --beta1 0.9 --init-feature 1:desc --epochs 4");
    folder.train("cosine", "--schedule cosine");
    contains(&folder.fails("train -o cosine --resume --epochs 5"), &["`epochs` was 3", "cannot become 5"]);
    // The folder that a run started from is not needed to resume it.
    folder.ok("train --train train.txt --valid valid.txt --from model --init-feature 1 --epochs 1 -o warm");
    std::fs::remove_dir_all(folder.path().join("model")).unwrap();
    folder.ok("train -o warm --resume --epochs 2");
}

#[test]
fn what_the_validation_metric_cannot_use_is_found_before_training() {
    let folder = with_data();
    folder.file("halves.txt", "0.5 qid:1 1:1 5:1\n0 qid:1 1:2\n");
    let message = folder.fails("train --train train.txt --valid halves.txt --select map -o model");
    contains(&message, &["no validation query counts for map"]);
    folder.file("large.txt", "40 qid:1 1:1 5:1\n0 qid:1 1:2\n");
    contains(&folder.fails("train --train train.txt --valid large.txt -o model"), &["40", "--gain linear"]);
    let tiny = TINY.join(" ");
    folder.ok(&format!("train --train train.txt --valid large.txt --gain linear --epochs 1 {tiny} -o model"));
    let message = folder.fails(&format!("train --train train.txt --epochs 0 {tiny} -o other"));
    contains(&message, &["nothing would end this run"]);
}

#[test]
fn a_run_that_diverges_says_what_to_try() {
    let folder = with_data();
    let train = format!("train --train train.txt -o model --overwrite --epochs 1 {}", TINY.join(" "));
    let output = folder.run(&format!("{train} --noise 1e38"));
    assert_eq!(output.status.code(), Some(1));
    contains(
        &String::from_utf8(output.stderr).unwrap(),
        &["step 1: the ", "try a lower --lr", "less --noise"],
    );
}

#[test]
fn without_validation_data_the_last_model_is_kept() {
    let folder = with_data();
    let run = format!("train --train train.txt {} --batch-sets 4 --epochs 5", TINY.join(" "));
    folder.ok(&format!("{run} -o whole --max-steps 8"));
    folder.ok(&format!("{run} -o longer --max-steps 7"));
    folder.ok("train -o longer --resume --max-steps 8");
    let model = |name: &str| folder.bytes(&format!("{name}/model.safetensors"));
    assert!(model("whole") == model("longer"));
    folder.ok(&format!("{run} -o epoch --max-steps 6"));
    assert!(model("whole") != model("epoch"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_or_full_stderr_is_no_reason_to_die() {
    let folder = with_data();
    let tiny = TINY.join(" ");
    let run = |output: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_setrank"))
            .current_dir(folder.path())
            .args(
                format!("train --train train.txt --valid valid.txt -o {output} --epochs 2 {tiny}")
                    .split_whitespace(),
            )
            .stderr(std::fs::File::options().write(true).open("/dev/full").unwrap())
            .status()
            .unwrap()
    };
    assert!(run("model").success());
    folder.ok("rank --model model --data valid.txt");
    assert_eq!(run("train.txt/x").code(), Some(1));
}

#[test]
fn the_end_of_steps_is_validated_where_nothing_was_before() {
    let folder = with_data();
    let err = folder.train("model", "--max-steps 2 --epochs 3");
    contains(&err, &["step 2 ", "ndcg@10", "all steps are done"]);
    folder.ok("train -o model --resume --max-steps 0");
    folder.train("whole", "--epochs 3");
    for file in ["model.safetensors", "state.safetensors"] {
        assert!(folder.bytes(&format!("model/{file}")) == folder.bytes(&format!("whole/{file}")), "{file}");
    }
}

#[test]
fn a_finished_run_with_a_broken_model_is_not_called_done() {
    let folder = with_data();
    folder.train("model", "");
    folder.file("model/model.safetensors", &folder.bytes("model/model.safetensors")[..300]);
    contains(
        &folder.fails("train -o model --resume"),
        &["model.safetensors", "not a whole safetensors file"],
    );
}

#[test]
fn a_state_is_resumed_only_under_its_own_configuration() {
    let folder = with_data();
    folder.train("model", "--lr 0.01");
    folder.train("other", "--lr 0.02 --dropout 0.1");
    folder.file("model/train.toml", folder.bytes("other/train.toml"));
    contains(&folder.fails("train -o model --resume --epochs 5"), &["train.toml", "not of the same run"]);
    // A run that replaces another leaves nothing of it to be resumed.
    let tiny = TINY.join(" ");
    let diverging =
        format!("train --train train.txt --valid valid.txt -o other --overwrite {tiny} --lr 1e38 --clip 0");
    assert_eq!(folder.run(&diverging).status.code(), Some(1));
    assert_eq!(folder.run("train -o other --resume").status.code(), Some(1));
    folder.ok("rank --model other --data valid.txt");
}

#[cfg(unix)]
#[test]
fn one_run_at_a_time_trains_into_a_folder() {
    let folder = with_data();
    folder.train("model", "");
    let lock = std::fs::File::open(folder.path().join("model")).unwrap();
    lock.lock().unwrap();
    contains(&folder.fails("train -o model --resume --epochs 5"), &["another run"]);
    lock.unlock().unwrap();
    folder.ok("train -o model --resume --epochs 5");
}

#[test]
fn a_new_run_leaves_no_events_of_the_old() {
    let folder = with_data();
    let events = |folder: &Folder| {
        folder.contents().iter().filter(|(path, _)| path.to_string_lossy().contains("tfevents")).count()
    };
    folder.train("model", "");
    folder.train("model", "--overwrite");
    assert_eq!(events(&folder), 1);
    folder.ok("train -o model --resume --epochs 4");
    assert_eq!(events(&folder), 2);
}

#[test]
fn sets_without_documents_are_passed_over() {
    let folder = with_data();
    let data = setrank::data::letor::read(&[folder.path().join("train.txt")], &Default::default()).unwrap();
    let mut builder = setrank::data::DatasetBuilder::new(data.num_features());
    for query in data.queries() {
        builder.start_query(format!("empty before {}", query.id()));
        builder.start_query(query.id());
        for document in 0..query.len() {
            builder.push(setrank::data::Document {
                features: query.document(document),
                label: query.labels().map(|labels| labels[document]),
                id: "",
            });
        }
    }
    setrank::data::store::write(&builder.finish(), &folder.path().join("holes.sets")).unwrap();
    let tiny = TINY.join(" ");
    folder.ok(&format!("train --train train.txt --valid holes.sets -o model --epochs 2 {tiny}"));
    folder.ok(&format!("train --train holes.sets --valid holes.sets -o holes --epochs 2 {tiny}"));
    assert_eq!(
        folder.ok("rank --model model --data holes.sets"),
        folder.ok("rank --model model --data train.txt")
    );
}

#[test]
fn a_diverging_run_stops_and_says_so() {
    let folder = with_data();
    let flags = format!("train --train train.txt --valid valid.txt -o model {}", TINY.join(" "));
    let output = folder.run(&format!("{flags} --lr 1e38 --clip 0 --epochs 50 --patience 0"));
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    contains(&message, &["error: ", "lower --lr"]);
}

#[test]
fn what_a_state_says_of_the_run_is_covered_by_its_checksum() {
    let folder = with_data();
    folder.train("model", "--max-steps 4");
    let state = folder.bytes("model/state.safetensors");
    let text = String::from_utf8_lossy(&state).into_owned();
    let place = text.find("step_in_epoch").unwrap();
    let digit = state[place..].iter().position(u8::is_ascii_digit).unwrap() + place;
    let mut forged = state.clone();
    forged[digit] = b'9';
    assert_ne!(state, forged);
    folder.file("model/state.safetensors", forged);
    contains(&folder.fails("train -o model --resume"), &["state.safetensors", "checksum"]);
}

#[test]
fn huge_numbers_are_refused_or_harmless() {
    let folder = with_data();
    let huge = i64::MAX;
    folder.train("model", &format!("--epochs {huge} --max-steps 2 --accumulate {huge} --schedule cosine"));
    folder.train("seed", &format!("--seed {huge}"));
    let run = format!("train --train train.txt -o x --seed {}", u64::MAX);
    assert_eq!(folder.run(&run).status.code(), Some(2));
}

#[test]
fn damaged_states_are_refused() {
    let folder = with_data();
    folder.train("model", "");
    let state = folder.bytes("model/state.safetensors");
    let mut altered = state.clone();
    *altered.last_mut().unwrap() ^= 1;
    folder.file("model/state.safetensors", altered);
    contains(&folder.fails("train -o model --resume --epochs 5"), &["state.safetensors", "checksum"]);
    folder.file("model/state.safetensors", &state[..state.len() / 2]);
    contains(&folder.fails("train -o model --resume --epochs 5"), &["state.safetensors", "not a whole"]);
    folder.file("model/state.safetensors", "");
    contains(&folder.fails("train -o model --resume --epochs 5"), &["state.safetensors"]);
}

#[test]
fn training_text_keeps_its_index_base() {
    let folder = Folder::new();
    let zero_based = letor(24, 1).replace(" 1:", " 0:").replace(" 2:", " 1:");
    folder.file("train.txt", &zero_based);
    // Index 0 is absent here: the columns must not shift.
    let narrow: String =
        zero_based.lines().map(|l| format!("{} 3:0.5\n", l.split(" 0:").next().unwrap())).collect();
    folder.file("valid.txt", narrow);
    folder.train("model", "");
    contains(&folder.text("model/config.json"), &["\"index_base\": 0", "\"num_features\": 6"]);
    folder.file("wide.txt", "1 qid:1 0:1\n0 qid:1 6:1\n");
    contains(&folder.fails("rank --model model --data wide.txt"), &["wide.txt:2", "6"]);
}

#[test]
fn an_average_resumes_to_the_same_bits() {
    let folder = with_data();
    let flags = "--ema 0.9 --noise 0.1 --feature-dropout 0.2 --loss lambda_loss --within-set rank --fill high \
                 --normalize quantile";
    folder.train("whole", &format!("{flags} --epochs 3"));
    folder.train("parts", &format!("{flags} --max-steps 4"));
    folder.ok("train -o parts --resume --max-steps 7");
    folder.ok("train -o parts --resume --max-steps 0 --threads 3");
    for file in ["model.safetensors", "state.safetensors"] {
        assert!(folder.bytes(&format!("whole/{file}")) == folder.bytes(&format!("parts/{file}")), "{file}");
    }
    folder.train("plain", &flags.replace("--ema 0.9", "--ema 0"));
    assert!(folder.bytes("whole/model.safetensors") != folder.bytes("plain/model.safetensors"));
    contains(&folder.fails("train -o whole --resume --ema 0.5"), &["`ema` was 0.9"]);
    contains(&folder.text("whole/config.json"), &["\"quantile\"", "\"knots\"", "\"within_set\": \"rank\""]);
    // A model that starts from it keeps what it is.
    folder.ok("train --train train.txt --valid valid.txt --from whole --epochs 1 -o warm");
    contains(&folder.text("warm/train.toml"), &["within_set = \"rank\"", "normalize = \"quantile\""]);
}

#[test]
fn the_size_is_settled_by_the_training_queries() {
    let folder = with_data();
    folder.ok("train --train train.txt -o model --epochs 1 --blocks 1 --ffn 8");
    contains(&folder.text("model/train.toml"), &["hidden = 64", "heads = 2", "blocks = 1", "ffn = 8"]);
    folder.ok("train --train train.txt -o full --epochs 1 --size full --hidden 8 --blocks 1 --ffn 8");
    contains(&folder.text("full/train.toml"), &["hidden = 8", "heads = 8", "blocks = 1"]);
}
