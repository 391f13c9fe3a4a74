package deltaport;

import io.delta.storage.LocalLogStore;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.Action$;
import org.apache.spark.sql.delta.actions.AddCDCFile;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Delta's log on local and mounted disks: a version has one winner, and what it needs is on the disk before it shows.
 *
 * What a commit adds (data files, deletion vectors, their folders) is synced first, then the commit's own content.
 * It gets its name by a hard link, which fails where the name is taken, whoever took it; then its folder is synced.
 * Delta's own store looks first and renames then, and syncs nothing. Files that the executors of a cluster wrote are
 * synced from here, through the mount.
 *
 * Compiled by Janino when Spark starts: no lambdas, no try with resources, and no
 * generics inside of methods. `deltaport.fsync` is read at
 * each write, from the session that commits.
 */
public final class DurableLogStore extends LocalLogStore {
    private static final String FSYNC = "deltaport.fsync";
    private static final String FIRST_COMMIT = "00000000000000000000.json";
    private static final String LAST_CHECKPOINT = "_last_checkpoint";
    private static final Pattern COMMIT = Pattern.compile("[0-9]{20}\\.json");
    private static final Pattern VERSION = Pattern.compile("\"version\"\\s*:\\s*([0-9]+)");
    private static final Pattern NO_FOLDER_SYNC =
        Pattern.compile("Invalid argument|not supported|not implemented", Pattern.CASE_INSENSITIVE);
    private static final Logger LOG = LoggerFactory.getLogger(DurableLogStore.class);
    private static final AtomicBoolean LINKS_MISSED = new AtomicBoolean();
    private static final AtomicBoolean FOLDERS_MISSED = new AtomicBoolean();
    private static final Object RENAMING = new Object();

    public DurableLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
        File target = local(path.toUri());
        File folder = target.getParentFile();
        boolean replaces = overwrite.booleanValue();
        boolean syncs = conf.getBoolean(FSYNC, true);
        if (!folder.isDirectory()) {
            throw new FileNotFoundException("No such file or directory: " + path.getParent());
        }
        if (!replaces && target.exists()) {
            throw new FileAlreadyExistsException(path.toString());
        }
        File draft = new File(folder, "." + target.getName() + "." + UUID.randomUUID() + ".tmp");
        try {
            Set needed = fill(draft, actions, syncs ? target : null);
            if (syncs) {
                syncWithFolders(needed, folder.getParentFile());
                sync(draft);
            }
            // A checksum that was left under this name would make Hadoop refuse the new content.
            Files.deleteIfExists(checksumOf(target).toPath());
            if (replaces) {
                Files.move(draft.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
            } else {
                publish(draft, target);
            }
        } finally {
            Files.deleteIfExists(draft.toPath());
        }
        if (syncs) {
            syncFolder(folder);
            if (target.getName().equals(FIRST_COMMIT)) {
                syncFolder(folder.getParentFile());
                syncFolder(folder.getParentFile().getParentFile());
            }
        }
    }

    /** Write the lines down; the files that must be on the disk before anybody reads them. */
    private static Set fill(File draft, Iterator lines, File target) throws IOException {
        Set needed = new LinkedHashSet();
        OutputStream out = new BufferedOutputStream(new FileOutputStream(draft));
        try {
            while (lines.hasNext()) {
                String line = (String) lines.next();
                out.write(line.getBytes(StandardCharsets.UTF_8));
                out.write('\n');
                if (target != null) {
                    addNeeded(line, target, needed);
                }
            }
        } finally {
            out.close();
        }
        return needed;
    }

    private static void addNeeded(String line, File target, Set needed) {
        File log = target.getParentFile();
        if (COMMIT.matcher(target.getName()).matches()) {
            if (!line.startsWith("{\"remove\":")) {
                addNamed(Action$.MODULE$.fromJson(line), log.getParentFile(), needed);
            }
        } else if (target.getName().equals(LAST_CHECKPOINT)) {
            Matcher version = VERSION.matcher(line);
            if (version.find()) {
                String start = String.format("%020d.checkpoint.", Long.valueOf(version.group(1)));
                addListed(log, start, needed);
                addListed(new File(log, "_sidecars"), "", needed);
            }
        }
    }

    private static void addNamed(Action action, File table, Set needed) {
        if (action instanceof AddFile) {
            AddFile file = (AddFile) action;
            addLocal(table, file.pathAsUri(), needed);
            DeletionVectorDescriptor vector = file.deletionVector();
            if (vector != null && vector.isOnDisk()) {
                addLocal(table, vector.absolutePath(new Path(table.toURI())).toUri(), needed);
            }
        } else if (action instanceof AddCDCFile) {
            addLocal(table, ((AddCDCFile) action).pathAsUri(), needed);
        }
    }

    /** A file of another kind of storage, which a shallow clone may name, is not ours to sync. */
    private static void addLocal(File table, URI place, Set needed) {
        if (place.getScheme() == null || place.getScheme().equals("file")) {
            File file = local(place);
            needed.add(file.isAbsolute() ? file : new File(table, file.getPath()));
        }
    }

    private static void addListed(File folder, String start, Set needed) {
        String[] names = folder.list();
        for (int i = 0; names != null && i < names.length; i++) {
            if (names[i].startsWith(start)) {
                needed.add(new File(folder, names[i]));
            }
        }
    }

    /** The files, and the folders that lead to them from the table's own on. */
    private static void syncWithFolders(Set files, File table) throws IOException {
        Set folders = new LinkedHashSet();
        for (Iterator each = files.iterator(); each.hasNext();) {
            File file = (File) each.next();
            sync(file);
            if (checksumOf(file).exists()) {
                sync(checksumOf(file));
            }
            File folder = file.getParentFile();
            boolean isInside = file.toPath().startsWith(table.toPath());
            while (folders.add(folder) && isInside && !folder.equals(table)) {
                folder = folder.getParentFile();
            }
        }
        for (Iterator each = folders.iterator(); each.hasNext();) {
            syncFolder((File) each.next());
        }
    }

    private static void publish(File draft, File target) throws IOException {
        try {
            Files.createLink(target.toPath(), draft.toPath());
        } catch (FileAlreadyExistsException error) {
            // A network mount that repeats a call whose answer was lost meets its own link.
            if (!Files.isSameFile(draft.toPath(), target.toPath())) {
                throw error;
            }
        } catch (IOException error) {
            if (!target.exists() || !Files.isSameFile(draft.toPath(), target.toPath())) {
                publishByRename(draft, target, error);
            }
        } catch (UnsupportedOperationException error) {
            publishByRename(draft, target, error);
        }
    }

    private static void publishByRename(File draft, File target, Exception reason) throws IOException {
        if (LINKS_MISSED.compareAndSet(false, true)) {
            LOG.error("The disk of a table has no hard links ({}): commits are renamed into place, and another program"
                + " that commits the same version at the same moment may be overwritten", reason.toString());
        }
        synchronized (RENAMING) {
            if (target.exists()) {
                throw new FileAlreadyExistsException(target.toString());
            }
            Files.move(draft.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
        }
    }

    private static void syncFolder(File folder) throws IOException {
        try {
            sync(folder);
        } catch (IOException error) {
            if (error.getMessage() == null || !NO_FOLDER_SYNC.matcher(error.getMessage()).find()) {
                throw error;
            }
            if (FOLDERS_MISSED.compareAndSet(false, true)) {
                LOG.error("The disk of a table does not sync folders ({}): a power failure may take the newest commits",
                    error.toString());
            }
        }
    }

    /** A thread that is interrupted meanwhile goes on: what was begun must be on the disk when it is told. */
    private static void sync(File file) throws IOException {
        boolean isDone = false;
        boolean isInterrupted = false;
        while (!isDone) {
            FileChannel channel = FileChannel.open(file.toPath(), StandardOpenOption.READ);
            try {
                channel.force(true);
                isDone = true;
            } catch (ClosedByInterruptException error) {
                isInterrupted = Thread.interrupted();
            } finally {
                channel.close();
            }
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static File checksumOf(File file) {
        return new File(file.getParentFile(), "." + file.getName() + ".crc");
    }

    private static File local(URI place) {
        return new File(place.getPath());
    }
}
