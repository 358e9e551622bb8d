"""A bundle: everything one request needs, in one verified directory.

    bundle-<version>/
        catalogue/      item ids, display texts, categories           serving/bundle/catalogue.py
        users/          user ids, categorical features                serving/bundle/users.py
        histories/      what each user did, oldest first
        popularity/     the fallback                                  recsys/models/popularity.py
        item_to_item/, ease/
                        weights between items (may be absent)         recsys/models/item_weights
        content/        content.npy, words.safetensors                serving/bundle/items.py
        two_tower/      model, item_vectors.npy                       serving/bundle/item_index.py
        index/          items.faiss of the two-tower and its description (may be absent);
                        of many items also those of serving/bundle/item_index.py
        semantic_ids/   codes, id rows (may be absent, with quantizer/)
        quantizer/      gives new items their IDs                     serving/bundle/semantic_ids.py
        content_similarity/, sequence/, ensemble/, generative/, blend_fast/, blend_full/
                        each may be absent                       serving/bundle/history_models.py
        ranker/         orders what blend_fast finds (may be absent)  serving/bundle/ranker.py
        manifest.json   digests, dimensions, versions; written last   serving/bundle/manifest.py
    bundle-<version>+<n>/   a delta: rows appended to its parent      serving/bundle/delta.py
    current             link to the one that is served

Pipelines write bundles with `write.write_bundle` and `manifest.publish`; serving and batch scoring
read them with `load.load_bundle`, which refuses any file that is not exactly as it was written.
"""
