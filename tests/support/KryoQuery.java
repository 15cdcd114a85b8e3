import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.GroupStateTimeout;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.Trigger;

/** A query with `flatMapGroupsWithState` whose state is an object that Kryo serializes. Its output is recorded by batch. */
public class KryoQuery {
    private static final List<String> OUTPUT = Collections.synchronizedList(new ArrayList<>());

    public static class Numbers implements Serializable {
        public long total;
        public List<Long> seen = new ArrayList<>();
    }

    public static StreamingQuery start(SparkSession spark, String input, String schema, String checkpoint) throws Exception {
        Dataset<Row> rows = spark.readStream().schema(schema).option("maxFilesPerTrigger", 1).parquet(input);
        FlatMapGroupsWithStateFunction<String, Row, Numbers, String> update = (key, values, state) -> {
            Numbers numbers = state.exists() ? state.get() : new Numbers();
            while (values.hasNext()) {
                long number = values.next().<Long>getAs("x");
                numbers.total += number;
                numbers.seen.add(number);
            }
            state.update(numbers);
            return Collections.singletonList(key + ": " + numbers.total + " of " + numbers.seen.size()).iterator();
        };
        VoidFunction2<Dataset<String>, Long> keep = (batch, number) ->
            batch.collectAsList().forEach(row -> OUTPUT.add(number + "\t" + row));
        return rows.groupByKey((MapFunction<Row, String>) row -> row.getAs("k"), Encoders.STRING())
            .flatMapGroupsWithState(
                update, OutputMode.Update(), Encoders.kryo(Numbers.class), Encoders.STRING(), GroupStateTimeout.NoTimeout())
            .writeStream().outputMode("update").foreachBatch(keep)
            .option("checkpointLocation", checkpoint).trigger(Trigger.AvailableNow()).start();
    }

    /** The rows since the last call, with the number of their batch. */
    public static String[] take() {
        synchronized (OUTPUT) {
            String[] taken = OUTPUT.toArray(new String[0]);
            OUTPUT.clear();
            return taken;
        }
    }
}
